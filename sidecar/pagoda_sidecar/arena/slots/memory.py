"""How long uses count: the half-life under which small shadows of the tier would have hit most.

Conversations are best kept by recency, documents by frequency, and a tier holds both. So a part of all runs, told
by their names, is replayed without any bytes in shadows that much smaller than the tier, one per half-life; every few
turnovers the half-life of the best one is taken, if it is better by more than noise. (Sampling by name:
SHARDS, Waldspurger et al., 2015.)
"""

import heapq
import math
from collections import OrderedDict
from collections.abc import Sequence

from pagoda_sidecar.arena.slots.run import ChainRun

MIN_SHADOW_SLOTS = 512
MAX_SAMPLE = 16  # every how manieth run is replayed
TURNOVERS = (1.0, 4.0, 16.0, 64.0, 256.0)  # half-lives in tier sizes
START = 4  # the longest: a tier that has seen little must not forget it
MARGIN = 0.01  # of the blocks used
REMEMBERED = 0.85  # what hits of a period count for in the next: less, and chance would choose the half-life
RECENT = 4  # a use that soon (part of the tier) after the one before is of the same request, and tells nothing
PERIOD_TURNOVERS = 4
_EVICTED_AT_ONCE = 32  # runs; the room that a long run still owes then is made with the next uses


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
        self._period_blocks = PERIOD_TURNOVERS * size
        self._num_blocks = 0.0  # that passed through a shadow while its hits were counted, faded as they are

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
        self._num_blocks = REMEMBERED * self._num_blocks + self._period_blocks
        if hits[best] - hits[self._chosen] > MARGIN * self._num_blocks:
            self.epoch += best < self._chosen  # ranks become lower
            self._chosen = best
        for shadow in self._shadows:
            shadow.num_hits *= REMEMBERED


class _Shadow:
    """What a tier with this half-life would hold: names and sizes of runs."""

    def __init__(self, num_blocks: int, half_life: float, recent: int) -> None:
        self.num_hits = 0.0
        self._room = num_blocks
        self._recent = recent
        self._half_life = half_life
        self._runs: dict[bytes, tuple[float, int, int]] = {}  # head → weight, last use, size
        self._gone: OrderedDict[bytes, tuple[float, int]] = OrderedDict()
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
        for _ in range(_EVICTED_AT_ONCE):
            if self._room >= 0:
                break
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
            self._gone.popitem(last=False)

    def _rank(self, weight: float, last_use: int) -> float:
        return last_use + self._half_life * math.log2(weight)
