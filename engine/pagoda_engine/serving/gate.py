"""Whether requests may come in, and how many are inside.

    starting(reason …) ──open──► open ──close──► draining ──last one leaves──► drained

Rules: touched by the event loop alone, except that a loading thread may `say` why. Once draining, never open again.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Generic, TypeVar

from pagoda_engine.serving.errors import UnavailableError

_Service = TypeVar("_Service")

_DRAINING = "draining"


class Gate(Generic[_Service]):
    """Lets requests through to a service once there is one and until it is to end."""

    def __init__(self) -> None:
        self._service: _Service | None = None
        self._reason: str = "starting"
        self._is_draining = False
        self._num_inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def reason(self) -> str | None:
        """Why requests are turned away; None: they are not."""
        if self._is_draining:
            return _DRAINING
        return self._reason if self._service is None else None

    @property
    def service(self) -> _Service | None:
        """What is behind the gate, whether or not it is open."""
        return self._service

    @property
    def num_inside(self) -> int:
        """Requests that were let in and have not left."""
        return self._num_inside

    def say(self, reason: str) -> None:
        """Set why the gate is not open yet."""
        self._reason = reason

    def open(self, service: _Service) -> None:
        """Let requests through to `service`, unless draining has begun."""
        self._service = service

    def close(self) -> None:
        """Turn new requests away from now on; those inside go on."""
        self._is_draining = True

    @contextlib.contextmanager
    def entered(self) -> Iterator[_Service]:
        """Be inside while the context is open.

        Raises:
            UnavailableError: the gate is not open.
        """
        if self._service is None or self.reason is not None:
            raise UnavailableError(f"The engine takes no requests now: {self.reason}.")
        self._num_inside += 1
        self._empty.clear()
        try:
            yield self._service
        finally:
            self._num_inside -= 1
            if not self._num_inside:
                self._empty.set()

    async def wait_empty(self, timeout_seconds: float) -> bool:
        """Wait until nobody is inside; return whether that came about in time."""
        try:
            await asyncio.wait_for(self._empty.wait(), timeout_seconds)
        except TimeoutError:
            return False
        return True
