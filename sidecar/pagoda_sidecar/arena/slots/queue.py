"""Runs in the order of their eviction, each at most once valid.

A rank that rose is found out when its entry comes up, and the entry goes back; only what may have lowered a rank asks
for a new entry. So a use costs nothing here.
"""

import heapq
from collections.abc import Callable
from itertools import count

from pagoda_sidecar.arena.slots.run import ChainRun

Rank = tuple[int, float]
_RERANKED_AT_ONCE = 64


class RunQueue:
    """See the head of this file. `is_eligible` says whether a run may be taken from this queue at this moment."""

    def __init__(self, rank: Callable[[ChainRun], Rank], is_eligible: Callable[[ChainRun], bool]) -> None:
        self._rank = rank
        self._is_eligible = is_eligible
        self._heap: list[tuple[Rank, int, ChainRun]] = []
        self._entries: dict[ChainRun, int] = {}  # run → number of its valid entry
        self._outdated: list[ChainRun] = []
        self._numbers = count()

    def push(self, run: ChainRun) -> None:
        """Make sure that `run` is found at its rank or before."""
        number = self._entries[run] = next(self._numbers)
        heapq.heappush(self._heap, (self._rank(run), number, run))
        if len(self._heap) > 2 * len(self._entries) + 64:
            self._heap = [entry for entry in self._heap if self._entries.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def discard(self, run: ChainRun) -> None:
        """Forget `run`; its entry is thrown away when it comes up."""
        self._entries.pop(run, None)

    def __contains__(self, run: ChainRun) -> bool:
        return run in self._entries

    def first(self) -> ChainRun | None:
        """Return the run that goes first, which stays in the queue."""
        self._rerank_some()
        while self._heap:
            rank, number, run = self._heap[0]
            if self._entries.get(run) != number:
                heapq.heappop(self._heap)
            elif not self._is_eligible(run):
                heapq.heappop(self._heap)
                del self._entries[run]
            elif (current := self._rank(run)) > rank:
                heapq.heapreplace(self._heap, (current, number, run))
            else:
                return run
        return None

    def pop(self) -> ChainRun | None:
        """Return the run that goes first and take it out; `push` brings it back."""
        run = self.first()
        if run is not None:
            heapq.heappop(self._heap)
            del self._entries[run]
        return run

    def ranks_fell(self) -> None:
        """All ranks may be lower: look at them anew, some at each call of `first`, lest one call take long."""
        self._outdated = list(self._entries)

    def _rerank_some(self) -> None:
        for _ in range(min(_RERANKED_AT_ONCE, len(self._outdated))):
            run = self._outdated.pop()
            if run in self._entries:
                self.push(run)
