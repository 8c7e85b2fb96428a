"""What loads cost this engine, from asking to the last copy, fitted while it works, tier by tier.

Two things are measured in each load: the time to its first block (latency, with the queues on the way), and the time
from one block to the next (bandwidth, with copy and decoding). Blocks that are in flight for others already come first:
the queue. Until a tier was measured, the sidecar's own estimate stands in.

Rules: tier threads write, every thread may read; a load that brought nothing is a measurement too, of how long it has
brought nothing.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from pagoda_engine.core.tiers import Part
from pagoda_engine.core.weighing import PROBE_SHARE, RETURN_SHARE, SERIAL_SHARE, LoadPrice, Stretch

_DECAY = 0.5  # per load: about the last two count, so that a tier that changes is known after a few
_MIN_SAMPLE = 4  # gaps that tell a pace by themselves
_CHANGE = 2.0  # so many times faster or slower than believed, a tier is another one now: nothing before counts
_MIN_PATIENCE, _MAX_PATIENCE = 4, 64
_STALE_SECONDS = 5.0  # after which a tier that was too slow is tried again


@dataclass
class _Tier:
    latency_seconds: float | None = None
    gap_seconds: float = 0.0  # decayed sums over gaps between two blocks
    num_gaps: float = 0.0
    total_seconds: float = 0.0  # decayed sums over whole loads
    num_blocks: float = 0.0
    num_in_flight: int = 0
    is_slow: bool = False
    num_slow: int = 0  # times it was judged so since it was last waited for
    patience: int = _MIN_PATIENCE // 2  # doubled each time it turns out slow; after so many it is waited for once more
    is_seen: bool = True  # something came when it was last tried
    measured_at: float = 0.0


class Prices:
    """The model of every tier."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tiers: dict[str, _Tier] = {}

    def price(self, tier: str, guess: LoadPrice | None = None) -> LoadPrice | None:
        """Return what loading from `tier` costs; `guess` while nothing was measured. Without the queue."""
        with self._lock:
            return self._price(tier, guess)

    def stretch(self, part: Part) -> Stretch:
        """Return what loading `part` would cost now, with what is in flight before it."""
        guess = LoadPrice(0.0, part.seconds / max(1, part.count))
        with self._lock:
            known, price = self._of(part.tier), self._price(part.tier, guess)
            assert price is not None
            queue = known.num_in_flight * price.block_seconds
            share = _serial_share(known)
        return Stretch(part.count, replace(price, latency_seconds=price.latency_seconds + queue), share)

    def is_stale(self, tier: str) -> bool:
        """Whether it is long ago that this tier was measured."""
        with self._lock:
            return self._clock() - self._of(tier).measured_at > _STALE_SECONDS

    def judge(self, tier: str, is_slow: bool) -> None:
        """Note whether a load from this tier was worth waiting for."""
        with self._lock:
            known = self._of(tier)
            if is_slow and not known.is_slow:
                known.patience = min(_MAX_PATIENCE, 2 * known.patience)
            elif not is_slow and not known.is_slow:
                known.patience = max(_MIN_PATIENCE, known.patience // 2)
            known.is_slow, known.num_slow = is_slow, known.num_slow + 1 if is_slow else 0

    def asked(self, tier: str, num_blocks: int) -> None:
        """So many blocks are on their way now; negative: they have come or will not."""
        with self._lock:
            known = self._of(tier)
            known.num_in_flight += num_blocks
            assert known.num_in_flight >= 0

    def record(self, tier: str, first_seconds: float, gap_seconds: float, num_blocks: int) -> None:
        """Note a load: the time to its first block, the sum of the gaps between its blocks, their number."""
        with self._lock:
            known = self._of(tier)
            if not known.is_seen:  # what was noted then was a bound only
                known.latency_seconds, known.is_seen = None, True
            if num_blocks > 1:
                if num_blocks > _MIN_SAMPLE and _has_changed(known, gap_seconds / (num_blocks - 1)):
                    known.gap_seconds = known.num_gaps = 0.0
                    known.latency_seconds = None
                known.gap_seconds = _DECAY * known.gap_seconds + gap_seconds
                known.num_gaps = _DECAY * known.num_gaps + num_blocks - 1
            block = known.gap_seconds / known.num_gaps if known.num_gaps else 0.0
            self._set_latency(known, max(0.0, first_seconds - block))
            known.total_seconds = _DECAY * known.total_seconds + first_seconds + gap_seconds
            known.num_blocks = _DECAY * known.num_blocks + num_blocks

    def record_nothing(self, tier: str, seconds: float) -> None:
        """Note a load that has brought nothing for so long."""
        with self._lock:
            known = self._of(tier)
            known.is_seen, known.measured_at = False, self._clock()
            known.latency_seconds = max(known.latency_seconds or 0.0, seconds)

    def block_seconds(self, tier: str) -> float:
        """Return what a block of this tier has cost lately, all in all; 0 while unknown."""
        with self._lock:
            known = self._tiers.get(tier)
            return known.total_seconds / known.num_blocks if known is not None and known.num_blocks else 0.0

    def _set_latency(self, known: _Tier, seconds: float) -> None:
        known.measured_at = self._clock()
        old = known.latency_seconds
        known.latency_seconds = seconds if old is None else _DECAY * old + (1 - _DECAY) * seconds

    def _of(self, tier: str) -> _Tier:
        return self._tiers.setdefault(tier, _Tier())

    def _price(self, tier: str, guess: LoadPrice | None) -> LoadPrice | None:
        known = self._of(tier)
        if known.latency_seconds is None:
            return guess
        block = 0.0 if guess is None else guess.block_seconds
        if known.num_gaps:
            block = known.gap_seconds / known.num_gaps
        return LoadPrice(known.latency_seconds, block, known.is_seen)


def _serial_share(known: _Tier) -> float:
    """Return which share of computing a load may take to be waited for."""
    if not known.is_slow:
        return SERIAL_SHARE
    return RETURN_SHARE if known.num_slow < known.patience else PROBE_SHARE


def _has_changed(known: _Tier, block_seconds: float) -> bool:
    if not known.num_gaps:
        return False
    believed = known.gap_seconds / known.num_gaps
    return not believed / _CHANGE <= block_seconds <= believed * _CHANGE
