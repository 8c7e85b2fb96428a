"""Who is written next. Pure: told the time, never looking at it.

No more than 20 writes per second in all, and a pod at most once per 30 s. First comes what is of another epoch, which
need not wait for the pod's 30 s: until it is written, readers believe nothing of that pod. Then the largest change.
"""

import heapq
import itertools
from collections import deque
from dataclasses import dataclass

WRITES_PER_SECOND = 20
POD_SECONDS = 30.0
# A hair over one: no second, wherever it begins, holds more than that many. Within it they may follow one another at
# once: a write by itself costs twice what it does among others, as does a look (scrape/schedule.py).
LOT_SECONDS = 1.01


@dataclass(frozen=True)
class Change:
    """How much a pod's annotations are behind."""

    is_epoch: bool
    steps: int
    """Of buckets, at least 1."""


class Turns:
    """Pods, by uid, that wait for their write.

    Each waiting pod has one ticket, in `_held` until its time has come and in `_ready` from then on; a ticket that is
    no longer the pod's own is passed over.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[int, Change]] = {}  # the pod's own ticket
        self._held: list[tuple[float, int, str]] = []  # by when it may be written
        self._ready: list[tuple[bool, int, int, str]] = []  # the most urgent first
        self._numbers = itertools.count()
        self._written_at: dict[str, float] = {}
        self._taken_at: deque[float] = deque(maxlen=WRITES_PER_SECOND)

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, uid: str, change: Change) -> None:
        """Have a pod wait, with how much it is behind by now."""
        number = next(self._numbers)
        self._waiting[uid] = (number, change)
        heapq.heappush(self._held, (self._allowed_at(uid, change), number, uid))

    def settle(self, uid: str) -> None:
        """Have a pod wait no longer: nothing is to be written."""
        self._waiting.pop(uid, None)

    def forget(self, uid: str) -> None:
        """Drop a pod that is gone."""
        self.settle(uid)
        self._written_at.pop(uid, None)

    def known_written(self, uid: str, now: float) -> None:
        """Take in that a pod was seen with annotations that somebody, maybe a moment ago, has written before us."""
        self._written_at.setdefault(uid, now)

    def take(self, now: float) -> str | None:
        """Take the pod to write now, and count it as written; None: nobody's turn has come."""
        if now < self._free_at():
            return None
        self._call_up(now)
        while self._ready:
            _, _, number, uid = heapq.heappop(self._ready)
            if self._is_own(uid, number):
                del self._waiting[uid]
                self._written_at[uid] = now
                self._taken_at.append(now)
                return uid
        return None

    def next_at(self) -> float | None:
        """Return when `take` is worth calling again; None: not before a pod waits."""
        while self._ready and not self._is_own(self._ready[0][3], self._ready[0][2]):
            heapq.heappop(self._ready)
        if self._ready:
            return self._free_at()
        while self._held and not self._is_own(self._held[0][2], self._held[0][1]):
            heapq.heappop(self._held)
        return max(self._held[0][0], self._free_at()) if self._held else None

    def _free_at(self) -> float:
        is_full = len(self._taken_at) == self._taken_at.maxlen
        return self._taken_at[0] + LOT_SECONDS if is_full else 0.0

    def _call_up(self, now: float) -> None:
        while self._held and self._held[0][0] <= now:
            _, number, uid = heapq.heappop(self._held)
            if self._is_own(uid, number):
                change = self._waiting[uid][1]
                heapq.heappush(self._ready, (not change.is_epoch, -change.steps, number, uid))

    def _is_own(self, uid: str, number: int) -> bool:
        return uid in self._waiting and self._waiting[uid][0] == number

    def _allowed_at(self, uid: str, change: Change) -> float:
        written_at = self._written_at.get(uid)
        return 0.0 if written_at is None or change.is_epoch else written_at + POD_SECONDS
