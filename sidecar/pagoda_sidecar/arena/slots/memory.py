"""How long uses count: the half-life under which small shadows of the tier would have hit most.

Conversations are best kept by recency, documents by frequency, and a tier holds both. So a part of all runs, told
by their names, is replayed without any bytes in shadows that much smaller than the tier, one per half-life; every few
turnovers the half-life of the best one is taken, if it is better by more than noise. (Sampling by name:
SHARDS, Waldspurger et al., 2015.)
"""

import heapq
import math
from collections.abc import Sequence

from pagoda_sidecar.arena.slots.run import ChainRun

MIN_SHADOW_SLOTS = 512
MAX_SAMPLE = 16  # every how manieth run is replayed
TURNOVERS = (1.0, 4.0, 16.0, 64.0)  # half-lives in tier sizes
START = 3
MARGIN = 0.01  # of the blocks used
RECENT = 4  # a use that soon (part of the tier) after the one before is of the same request, and tells nothing
PERIOD_TURNOVERS = 4


class Memory:
    """See the head of this file. `half_life` is in blocks stored or used."""

    def __init__(self, num_slots: int, turnovers: Sequence[float] = TURNOVERS, start: int = START) -> None:
        self.epoch = 0
        self._num_slots = num_slots
        self._half_lives = [num_slots * turnover for turnover in turnovers]
        self._chosen = start
        self._sample = max(1, min(MAX_SAMPLE, num_slots // MIN_SHADOW_SLOTS))
        size = max(1, num_slots // self._sample)
        self._shadows = [_Shadow(size, half_life, num_slots // RECENT) for half_life in self._half_lives]
        self._next_look = PERIOD_TURNOVERS * num_slots
        # Hits of the last period, half of those before, and so on: twice a period in all
        self._margin = MARGIN * 2 * PERIOD_TURNOVERS * size

    @property
    def half_life(self) -> float:
        """Blocks after which a use counts half."""
        return self._half_lives[self._chosen]

    def use(self, run: ChainRun, clock: int) -> None:
        """Follow a use of `run` at `clock`."""
        if run.head[-1] % self._sample == 0:
            for shadow in self._shadows:
                shadow.use(run.head, run.num_blocks, clock)
        if clock >= self._next_look:
            self._next_look = clock + PERIOD_TURNOVERS * self._num_slots
            self._look()

    def _look(self) -> None:
        hits = [shadow.num_hits for shadow in self._shadows]
        best = max(range(len(hits)), key=hits.__getitem__)
        if hits[best] - hits[self._chosen] > self._margin:
            self.epoch += best < self._chosen  # ranks become lower
            self._chosen = best
        for shadow in self._shadows:
            shadow.num_hits /= 2


class _Shadow:
    """What a tier with this half-life would hold: names and sizes of runs."""

    def __init__(self, num_blocks: int, half_life: float, recent: int) -> None:
        self.num_hits = 0.0
        self._room = num_blocks
        self._recent = recent
        self._half_life = half_life
        self._runs: dict[bytes, tuple[float, int, int]] = {}  # head → weight, last use, size
        self._gone: dict[bytes, tuple[float, int]] = {}
        self._heap: list[tuple[float, bytes]] = []

    def use(self, head: bytes, size: int, clock: int) -> None:
        known = self._runs.get(head)
        if known is None:
            weight, last_use = self._gone.pop(head, (0.0, clock))
        else:
            weight, last_use, former = known
            if clock - last_use > self._recent:
                self.num_hits += former
            self._room += former
            size = max(size, former)
        weight = 1.0 + weight * math.exp2((last_use - clock) / self._half_life)
        self._runs[head] = weight, clock, size
        self._room -= size
        if known is None:
            heapq.heappush(self._heap, (self._rank(weight, clock), head))
        while self._room < 0:
            self._evict()

    def _evict(self) -> None:
        rank, head = heapq.heappop(self._heap)
        weight, last_use, size = self._runs[head]
        current = self._rank(weight, last_use)
        if current > rank:  # used since
            heapq.heappush(self._heap, (current, head))
            return
        if size + self._room > 0:  # its end goes, its front stays
            self._runs[head] = weight, last_use, size + self._room
            self._room = 0
            heapq.heappush(self._heap, (rank, head))
            return
        self._room += size
        del self._runs[head]
        self._gone[head] = weight, last_use
        if len(self._gone) > 4 * len(self._runs) + 64:
            del self._gone[next(iter(self._gone))]

    def _rank(self, weight: float, last_use: int) -> float:
        return last_use + self._half_life * math.log2(weight)
