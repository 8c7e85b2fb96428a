"""Runs in the order of their eviction, each at most once valid.

A rank that rose is found out when its entry comes up, and the entry goes back; only what may have lowered a rank asks
for a new entry. So a use costs nothing here.

Outdated entries are thrown away when they come up, or when there are too many of them: then all entries move to a new
heap, a few with each push, from the end of the old one, which stays a heap. No call takes long, however many there are.
"""

import heapq
from collections.abc import Callable
from itertools import count

from pagoda_sidecar.arena.slots.run import ChainRun

Rank = tuple[int, float]
_Entry = tuple[Rank, int, ChainRun]
_RERANKED_AT_ONCE = 64
_MOVED_AT_ONCE = 4
_LOOKED_AT = 256  # entries in one search; of that many with outdated ranks, the one that goes first is near enough


class RunQueue:
    """See the head of this file. `is_eligible` says whether a run may be taken from this queue at this moment."""

    def __init__(self, rank: Callable[[ChainRun], Rank], is_eligible: Callable[[ChainRun], bool]) -> None:
        self._rank = rank
        self._is_eligible = is_eligible
        self._heap: list[_Entry] = []
        self._former: list[_Entry] = []  # the heap that is moved, if one is
        self._entries: dict[ChainRun, int] = {}  # run → number of its valid entry
        self._outdated: list[ChainRun] = []
        self._numbers = count()

    def push(self, run: ChainRun) -> None:
        """Make sure that `run` is found at its rank or before."""
        number = self._entries[run] = next(self._numbers)
        heapq.heappush(self._heap, (self._rank(run), number, run))
        self._move_some()

    def discard(self, run: ChainRun) -> None:
        """Forget `run`."""
        number = self._entries.pop(run, None)
        heap = self._lower()
        if heap and heap[0][1] == number:
            heapq.heappop(heap)

    def __contains__(self, run: ChainRun) -> bool:
        return run in self._entries

    def first(self) -> ChainRun | None:
        """Return the run that goes first, which stays in the queue."""
        self._rerank_some()
        lowest: tuple[Rank, ChainRun] | None = None
        num_looked_at = 0
        while heap := self._lower():
            rank, number, run = heap[0]
            num_looked_at += 1
            if self._entries.get(run) != number:
                heapq.heappop(heap)
            elif not self._is_eligible(run):
                heapq.heappop(heap)
                del self._entries[run]
            elif (current := self._rank(run)) > rank:
                heapq.heapreplace(heap, (current, number, run))
                if lowest is None or current < lowest[0]:
                    lowest = current, run
            else:
                return run
            if lowest is not None and num_looked_at >= _LOOKED_AT:
                return lowest[1]
        return None

    def ranks_fell(self) -> None:
        """All ranks may be lower: look at them anew, some at each call of `first`, lest one call take long."""
        self._outdated = list(self._entries)

    def _lower(self) -> list[_Entry]:
        """Return the heap with the entry that comes first; an empty one if there is none."""
        if not self._former or (self._heap and self._heap[0] < self._former[0]):
            return self._heap
        return self._former

    def _move_some(self) -> None:
        if not self._former and len(self._heap) > 2 * len(self._entries) + 64:
            self._former, self._heap = self._heap, []
        for _ in range(min(_MOVED_AT_ONCE, len(self._former))):
            entry = self._former.pop()
            if self._entries.get(entry[2]) == entry[1]:
                heapq.heappush(self._heap, entry)

    def _rerank_some(self) -> None:
        for _ in range(min(_RERANKED_AT_ONCE, len(self._outdated))):
            run = self._outdated.pop()
            if run in self._entries:
                self.push(run)
