"""Who is written next. Pure: told the time, never looking at it.

No more than 20 writes per second in all, and a pod at most once per 30 s. First comes what is of another epoch, which
need not wait for the pod's 30 s: until it is written, readers believe nothing of that pod. Then the largest change.
"""

from dataclasses import dataclass

WRITES_PER_SECOND = 20
POD_SECONDS = 30.0


@dataclass(frozen=True)
class Change:
    """How much a pod's annotations are behind."""

    is_epoch: bool
    steps: int
    """Of buckets, at least 1."""


class Turns:
    """Pods, by uid, that wait for their write."""

    def __init__(self) -> None:
        self._waiting: dict[str, Change] = {}
        self._written_at: dict[str, float] = {}
        self._free_at = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, uid: str, change: Change) -> None:
        """Have a pod wait, with how much it is behind by now."""
        self._waiting[uid] = change

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
        if now < self._free_at:
            return None
        ready = [uid for uid in self._waiting if self._allowed_at(uid) <= now]
        if not ready:
            return None
        uid = max(ready, key=lambda uid: (self._waiting[uid].is_epoch, self._waiting[uid].steps))
        del self._waiting[uid]
        self._written_at[uid] = now
        self._free_at = now + 1 / WRITES_PER_SECOND
        return uid

    def next_at(self) -> float | None:
        """Return when `take` is worth calling again; None: not before a pod waits."""
        allowed = min(map(self._allowed_at, self._waiting), default=None)
        return None if allowed is None else max(allowed, self._free_at)

    def _allowed_at(self, uid: str) -> float:
        written_at = self._written_at.get(uid)
        return self._free_at if written_at is None or self._waiting[uid].is_epoch else written_at + POD_SECONDS
