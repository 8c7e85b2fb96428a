"""Which leaf goes first when room is needed. Small on purpose: a better policy replaces this class and nothing else."""

import math
from typing import Protocol

from pagoda_sidecar.arena.slots.block import Block


class EvictionPolicy(Protocol):
    """Ranks blocks. The index asks only about leaves that nobody holds."""

    def use(self, block: Block) -> None:
        """Record one use (a hit, a touch, or that it was made) of `block`."""
        ...

    def rank(self, block: Block) -> float:
        """Return the order of eviction, lowest first. May change only in `use`."""
        ...


class HeatedLru:
    """Least recently used, where heat counts as recency.

    Time is counted in uses. Each doubling of a block's uses is worth as much as a quarter of the arena used since, up
    to four doublings, so that a prefix many requests shared outlives a burst of prompts nobody repeats.
    """

    MAX_DOUBLINGS = 4.0

    def __init__(self, num_slots: int) -> None:
        self._clock = 0
        self._doubling = num_slots / 4

    def use(self, block: Block) -> None:
        """Move `block` to the present."""
        self._clock += 1
        block.num_uses += 1
        block.last_use = self._clock

    def rank(self, block: Block) -> float:
        """Return its last use, moved on by its heat; parked blocks stand behind all others."""
        kept = 2.0**40 if block.is_parked else 0.0
        return kept + block.last_use + self._doubling * min(math.log2(max(1, block.num_uses)), self.MAX_DOUBLINGS)
