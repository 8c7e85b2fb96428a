"""What an engine is told at its start and never again."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineSettings:
    """Limits and patience of one engine. Times are seconds, sizes are counts.

    Raises:
        ValueError: a value that no engine could run with; the message names the field.
    """

    max_model_tokens: int
    """Most tokens of one sequence, prompt and output together (the model's own limit applies beside it)."""
    max_batch_tokens: int
    """Most tokens computed in one step."""
    max_sequences: int
    """Most requests admitted at once; see `num_places`."""

    max_preemptions_per_step: int = 2
    """More would empty the batch in one step for a need that the next step may no longer have."""
    growth_blocks: int = 4
    """Blocks kept free for the output of each running request before another one is admitted: less means preemptions
    soon after, more means idle memory."""
    follow_seconds: float = 2.0
    """How long a request waits for a block another one computes or loads while that one makes no progress."""

    weigh_loads: bool = True
    """Wait only for loads that are much faster than computing, and compute beside all others. Off: wait for all that is
    below (tests with models so small that computing always wins, and the arm *always* of `bench gate`)."""
    load_overhead_seconds: float = 0.003
    """What a load costs whatever its length; shorter runs are computed without asking."""
    max_lookup_seconds: float = 0.25
    """Longest lookup; shorter for short runs."""
    min_load_seconds: float = 0.1
    """Shortest deadline of a load, and shortest wait for one while nobody knows how fast this engine computes; longer
    for runs that would take longer to compute."""
    max_loads: int = 16
    """Loads that run at once, one thread each: those that race a slow tier must not hold up others."""
    store_seconds: float = 5.0
    """Deadline of one batch of stores."""
    max_store_blocks: int = 256
    """Blocks that wait for being stored or are being stored; further ones are dropped and counted."""

    report_seconds: float = 0.1
    """Shortest time between two reports to the sidecar."""
    load_report_seconds: float = 0.5
    """Longest time between two reports while the sidecar is attached."""
    max_digest_rows: int = 4096
    """Digest rows remembered for a sidecar that attaches anew."""

    def __post_init__(self) -> None:
        for name in ("max_model_tokens", "max_batch_tokens", "max_sequences", "max_preemptions_per_step", "max_loads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name, value in vars(self).items():
            if value < 0:
                raise ValueError(f"{name}: expected no negative value, got {value}")

    @property
    def num_places(self) -> int:
        """Requests admitted at once: one token of each step is left for prompts, else decodes could starve them."""
        return max(1, min(self.max_sequences, self.max_batch_tokens - 1))
