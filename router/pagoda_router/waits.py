"""Waits for a pod that somebody else may end: the router when its drain is over, a readiness when the pod hangs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Waits:
    """Any number of waits that end together."""

    def __init__(self) -> None:
        self.is_ended = False
        self._open: set[asyncio.Timeout] = set()

    @contextlib.asynccontextmanager
    async def open(self, seconds: float | None = None) -> AsyncIterator[None]:
        """Let what is inside wait for `seconds` at most, and no longer than until `end`.

        Raises:
            TimeoutError: `is_ended` says which of the two it was.
        """
        async with asyncio.timeout(0 if self.is_ended else seconds) as limit:
            self._open.add(limit)
            try:
                yield
            finally:
                self._open.discard(limit)

    def end(self) -> None:
        """End all waits, also those that are opened later."""
        self.is_ended = True
        now = asyncio.get_running_loop().time()
        for limit in self._open:
            if not limit.expired():
                limit.reschedule(now)
