"""Which run goes first when room is needed: the one whose uses, each fading with time, weigh least.

Each use weighs one when it happens and half as much every `half_life` blocks stored or used since (LRFU, Lee et al.,
2001). A short half-life is LRU, a long one is LFU that forgets; `Memory` finds which one would have hit more. Uses are
counted per run, once when a request finds or makes it and once when the request ends. What was evicted is remembered by
name, so that a document that comes back is known again; a prompt nobody repeats never weighs more than its one request.
"""

import math
from collections import OrderedDict
from typing import Protocol

from pagoda_sidecar.arena.slots.memory import Memory
from pagoda_sidecar.arena.slots.run import ChainRun

REQUEST = 2.0  # uses that a request counts for


class EvictionPolicy(Protocol):
    """Ranks runs. The index tells it of everything that happens to one and asks which goes first."""

    def begin(self, run: ChainRun) -> None:
        """A run came to be, with its first block."""
        ...

    def resize(self, run: ChainRun, change: int) -> None:
        """A run grew by a block at its end (+1) or lost one (-1)."""
        ...

    def split(self, run: ChainRun, tail: ChainRun, num_uses: int) -> None:
        """The end of `run` became a run of its own; `num_uses` of the uses of both ended in it."""
        ...

    def use(self, run: ChainRun) -> None:
        """Record one use."""
        ...

    def warm(self, run: ChainRun, weight: float) -> None:
        """The run is known to have had uses that weigh `weight` by now."""
        ...

    def end(self, run: ChainRun) -> None:
        """The last block of the run is gone."""
        ...

    def rank(self, run: ChainRun) -> float:
        """Return the order of eviction, lowest first. Other events than a split never lower it but by a new epoch."""
        ...

    @property
    def epoch(self) -> int:
        """A number that changes when ranks may have become lower."""
        ...


class FadingFrequency:
    """See the head of this file. Time is counted in blocks stored or used."""

    def __init__(self, num_slots: int, memory: Memory | None = None) -> None:
        self._num_slots = num_slots
        self._memory = Memory(num_slots) if memory is None else memory
        self._clock = 0
        self._gone: OrderedDict[bytes, tuple[float, int]] = OrderedDict()  # head → weight, last use

    @property
    def epoch(self) -> int:
        """A number that changes when ranks may have become lower."""
        return self._memory.epoch

    def begin(self, run: ChainRun) -> None:
        """A run came to be: it weighs a whole request at once, beside what is remembered of an earlier stay.

        Else a prompt that is still computed would give way to those before it that nobody repeats.
        """
        self._clock += 1
        run.weight, run.last_use, run.is_new = REQUEST, self._clock, True
        if (gone := self._gone.pop(run.head, None)) is not None:
            run.weight += self._faded(*gone)
        self._memory.use(run, self._clock)

    def resize(self, run: ChainRun, change: int) -> None:
        """Time goes on with each block stored."""
        self._clock += max(0, change)

    def split(self, run: ChainRun, tail: ChainRun, num_uses: int) -> None:
        """Give the new run what is known of its own uses, never more than it had as a part."""
        tail.weight, tail.last_use = min(run.weight, max(REQUEST, 1.0 + num_uses)), run.last_use
        tail.is_new = run.is_new

    def use(self, run: ChainRun) -> None:
        """Let the former uses fade to the present and add one, unless the run weighs it already."""
        self._clock += run.num_blocks
        run.weight = (0.0 if run.is_new else 1.0) + self._faded(run.weight, run.last_use)
        run.is_new = False
        run.last_use = self._clock
        self._memory.use(run, self._clock)

    def warm(self, run: ChainRun, weight: float) -> None:
        """Let it weigh at least that."""
        run.weight = max(run.weight, weight)

    def end(self, run: ChainRun) -> None:
        """Remember an evicted run for as long as others do not push it out."""
        self._gone[run.head] = run.weight, run.last_use
        if len(self._gone) > self._num_slots:
            self._gone.popitem(last=False)

    def rank(self, run: ChainRun) -> float:
        """Return when a single use would weigh as much as all of this run's: fading moves all runs alike."""
        return run.last_use + self._memory.half_life * math.log2(run.weight)

    def _faded(self, weight: float, last_use: int) -> float:
        return weight * math.exp2((last_use - self._clock) / self._memory.half_life)
