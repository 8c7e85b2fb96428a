"""Stores to one node go in single file, those that wait for one another together.

    store ─┐                         ┌─► batch on the wire ─► outcome, one by one as acknowledged
    store ─┼─► waiting ──(all of it)─┘
    store ─┘

One connection kept full gives memcached more than several half empty ones: measured, one client core and one server
core move twice as much. A caller that is cancelled while its bytes are on the wire takes the batch with it, because
its memory may be reused at once; the others' stores then have the outcome `cancelled`.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from pagoda_sidecar.pool.errors import NodeError
from pagoda_sidecar.pool.stores import Storing

_Send = Callable[[Sequence[Storing]], Awaitable[None]]


class StoreLane:
    """The stores of one node."""

    def __init__(self, send: _Send, window_bytes: int) -> None:
        """`send` writes a batch and decides each of its stores as soon as it can; it may raise NodeError."""
        self._send = send
        self._window_bytes = window_bytes
        self._waiting: deque[Storing] = deque()
        self._batch: asyncio.Task[None] | None = None

    async def store(self, storing: Storing) -> str:
        """Write one record and return its outcome, once decided."""
        self._waiting.append(storing)
        if self._batch is None:
            self._batch = asyncio.create_task(self._run())
        try:
            return await storing.outcome
        except asyncio.CancelledError:
            if storing in self._waiting:
                self._waiting.remove(storing)
            elif self._batch is not None and storing.outcome.cancelled():  # not decided: its bytes may be in use
                self._batch.cancel()  # it does not run again but to be told so
            raise

    async def _run(self) -> None:
        batch = self._take()  # only now: whoever was woken by the batch before this one has come back meanwhile
        ending = "cancelled"
        try:
            if batch:
                await self._send(batch)
        except NodeError as error:
            ending = error.outcome
        finally:
            for storing in batch:
                storing.decide(ending)
            self._batch = asyncio.create_task(self._run()) if self._waiting else None

    def _take(self) -> list[Storing]:
        batch: list[Storing] = []
        num_bytes = 0
        while self._waiting and (not batch or num_bytes + len(self._waiting[0].payload) <= self._window_bytes):
            batch.append(self._waiting.popleft())
            num_bytes += len(batch[-1].payload)
        return batch
