"""When which pod is asked next. Pure: told the time, never looking at it.

Two lanes, so that neither waits for the other, each with a pace that it never exceeds:

- *routine*: pods that have proven themselves, each once per max(30 s, pods ÷ 20 per s);
- *urgent*: pods that have not yet, so that Ready comes quickly: at once when an event says that something happened to
  them, then after 2 s, later after a twentieth of the time that they have been at it. A pod that loads weights for
  half an hour, or never comes up at all, is asked ever more seldom and no less often than a proven one.

Routine looks fall on whole seconds, all of a second at once: what wakes a process up costs more than a look itself, and
twenty looks by themselves cost twice what they do together (docs/decisions).
"""

import heapq
import itertools
from collections import deque
from dataclasses import dataclass

ROUTINE_PER_SECOND = 20
URGENT_PER_SECOND = 30
MIN_INTERVAL_SECONDS = 30.0
SOON_SECONDS = 2.0
TICK_SECONDS = 1.0
_PATIENCE = 20  # an urgent wait is this part of the time since the pod was first asked in vain


class Lane:
    """Keys by due time, given out no more than `per_second` in any second."""

    def __init__(self, per_second: int) -> None:
        self._taken_at: deque[float] = deque(maxlen=per_second)
        self._heap: list[tuple[float, int, str]] = []
        self._tickets: dict[str, int] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._tickets)

    def put(self, key: str, due: float) -> None:
        """Set when `key` is due; what was set before no longer counts."""
        self._tickets[key] = number = next(self._numbers)
        heapq.heappush(self._heap, (due, number, key))

    def drop(self, key: str) -> None:
        """Forget `key`; an unknown one is fine."""
        self._tickets.pop(key, None)

    def next_at(self) -> float | None:
        """Return when the next key may be taken; None: there is none."""
        while self._heap and self._tickets.get(self._heap[0][2]) != self._heap[0][1]:
            heapq.heappop(self._heap)
        if not self._heap:
            return None
        is_full = len(self._taken_at) == self._taken_at.maxlen
        return max(self._heap[0][0], self._taken_at[0] + 1.0) if is_full else self._heap[0][0]

    def take(self, now: float) -> str | None:
        """Take the key that is due at `now` for longest."""
        at = self.next_at()
        if at is None or at > now:
            return None
        key = heapq.heappop(self._heap)[2]
        del self._tickets[key]
        self._taken_at.append(now)
        return key


@dataclass
class _Turn:
    since: float
    """Since when the pod has been urgent."""
    is_asked: bool = False
    again: bool = False
    """Something happened to it while it was being asked."""


class Schedule:
    """Which of the pods, by uid, is asked when. A pod is in one lane, or being asked."""

    def __init__(self) -> None:
        self._routine = Lane(ROUTINE_PER_SECOND)
        self._urgent = Lane(URGENT_PER_SECOND)
        self._turns: dict[str, _Turn] = {}

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def interval_seconds(self) -> float:
        """How often a proven pod is asked."""
        return max(MIN_INTERVAL_SECONDS, len(self._turns) / ROUTINE_PER_SECOND)

    def ask_now(self, uid: str, now: float) -> None:
        """Have a pod, known or new, asked as soon as its lane allows: it is new, or something happened to it."""
        turn = self._turns.setdefault(uid, _Turn(now))
        turn.since = now
        if turn.is_asked:
            turn.again = True
        else:
            self._move(uid, self._urgent, now)

    def forget(self, uid: str) -> None:
        """Drop a pod; an unknown one is fine."""
        self._turns.pop(uid, None)
        self._routine.drop(uid)
        self._urgent.drop(uid)

    def take(self, now: float) -> str | None:
        """Take the pod to ask now, if there is one; `answered` or `forget` must follow."""
        uid = self._urgent.take(now) or self._routine.take(now)
        if uid is not None:
            self._turns[uid].is_asked = True
        return uid

    def answered(self, uid: str, now: float, is_proven: bool) -> None:
        """Say how asking went, and so when the pod is asked again. One that was forgotten meanwhile stays so."""
        turn = self._turns.get(uid)
        if turn is None:
            return
        turn.is_asked = False
        if turn.again:
            turn.again = False
            self._move(uid, self._urgent, now)
        elif is_proven:
            due = round((now + self.interval_seconds) / TICK_SECONDS) * TICK_SECONDS
            turn.since = due  # should it then be no longer proven
            self._move(uid, self._routine, due)
        else:
            self._move(uid, self._urgent, now + self._urgent_wait(turn, now))

    def next_at(self) -> float | None:
        """Return when `take` is worth calling again; None: not before another pod comes."""
        times = [at for lane in (self._urgent, self._routine) if (at := lane.next_at()) is not None]
        return min(times, default=None)

    def _urgent_wait(self, turn: _Turn, now: float) -> float:
        patience = max(SOON_SECONDS, (now - turn.since) / _PATIENCE)
        return min(max(patience, len(self._urgent) / URGENT_PER_SECOND), self.interval_seconds)

    def _move(self, uid: str, lane: Lane, due: float) -> None:
        for other in (self._routine, self._urgent):
            other.drop(uid)
        lane.put(uid, due)
