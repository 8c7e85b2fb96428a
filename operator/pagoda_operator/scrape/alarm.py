"""Sleeping until a time that may be brought forward meanwhile."""

import asyncio
import math
from collections.abc import Callable


class Alarm:
    """One sleeper; whoever has something for it earlier than it planned rings."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = -math.inf  # while it is awake, nothing is too late for it
        self._sleeper: asyncio.Future[None] | None = None

    async def sleep_until(self, at: float | None) -> None:
        """Sleep until `at`, None: until somebody rings. Returns at once where `at` has passed."""
        seconds = math.inf if at is None else at - self._clock()
        if seconds <= 0:
            return
        loop = asyncio.get_running_loop()
        self._sleeper = loop.create_future()
        self._until = math.inf if at is None else at
        timer = None if at is None else loop.call_later(seconds, self._wake)
        try:
            await self._sleeper
        finally:
            self._until = -math.inf
            if timer is not None:
                timer.cancel()

    def ring(self, at: float | None) -> None:
        """Say that there is something to do at `at`, if there is; wakes the sleeper if that is before it planned."""
        if at is not None and at < self._until:
            self._wake()

    def _wake(self) -> None:
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)
