"""Deadlines on the monotonic clock, and backoff between tries."""

import random
import time
from collections.abc import Callable, Iterator


class Deadline:
    """A point in time that several calls share, so that their sum is bounded and not only each."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    @property
    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - self._clock())

    @property
    def expired(self) -> bool:
        """Whether no time is left."""
        return self.remaining == 0.0


def backoff(first: float = 0.1, limit: float = 10.0, chance: Callable[[], float] = random.random) -> Iterator[float]:
    """Yield waits in seconds, doubling from `first` to `limit`, each shortened by up to half so that peers spread."""
    wait = first
    while True:
        yield wait * (0.5 + chance() / 2)
        wait = min(wait * 2, limit)
