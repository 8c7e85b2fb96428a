"""How fast the pool has been lately: what the engine weighs a load against computing the block.

Only exchanges that ended well count. One that failed says nothing of the next load, which will be a miss (the breaker
is open), and a tier whose pace had been spoilt by a dead node would never be tried again.
"""

_WEIGHT = 0.2  # of the newest sample
_MIN_SAMPLE_BYTES = 64 << 10  # fewer say more of latency than of bandwidth


class Pace:
    """Exponentially weighted means, starting from what loopback and data centres usually show."""

    def __init__(self, latency_seconds: float = 0.001, seconds_per_byte: float = 1e-9) -> None:
        self.latency_seconds = latency_seconds
        self.seconds_per_byte = seconds_per_byte

    def observe(self, latency_seconds: float, elapsed_seconds: float, num_bytes: int) -> None:
        """Record one exchange: time to its first answer, to its last, and the payload bytes in it."""
        self.latency_seconds += _WEIGHT * (latency_seconds - self.latency_seconds)
        if num_bytes >= _MIN_SAMPLE_BYTES:
            sample = (elapsed_seconds - latency_seconds) / num_bytes
            self.seconds_per_byte += _WEIGHT * (max(0.0, sample) - self.seconds_per_byte)
