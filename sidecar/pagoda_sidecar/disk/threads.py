"""The tier's threads: a few that read, one that writes. The control loop waits for them only so long."""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from pagoda_sidecar.disk.health import LateError

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class DiskThreads:
    """Runs blocking calls; one that hangs costs its thread and nothing else."""

    def __init__(self, num_readers: int) -> None:
        self._readers = ThreadPoolExecutor(num_readers, "disk-read")
        self._writer = ThreadPoolExecutor(1, "disk-write")
        self._running: set[asyncio.Future[None]] = set()
        self._touching: set[asyncio.Future[None]] = set()

    def read(
        self, work: Callable[_Parameters, _Result], *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> "Future[_Result]":
        """Start `work` in a reading thread."""
        return self._noted(self._readers.submit(work, *args, **kwargs), self._running)

    def read_into(
        self, work: Callable[_Parameters, _Result], *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> "Future[_Result]":
        """Start `work` in a reading thread, where it writes to memory of others."""
        return self._noted(self.read(work, *args, **kwargs), self._touching)

    def write(
        self, work: Callable[_Parameters, _Result], *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> "Future[_Result]":
        """Start `work` in the writing thread, behind what it does already."""
        return self._noted(self._writer.submit(work, *args, **kwargs), self._running)

    def after_writes(self, act: Callable[[], None]) -> None:
        """Call `act` in the control loop when all that was given to the writing thread so far has ended."""
        loop = asyncio.get_running_loop()

        def tell(_: "Future[None]") -> None:
            with contextlib.suppress(RuntimeError):  # the loop is gone
                loop.call_soon_threadsafe(act)

        self._writer.submit(lambda: None).add_done_callback(tell)

    async def idle(self, timeout_seconds: float) -> bool:
        """Wait until no thread does anything for us; False when that takes too long."""
        return await _ended(self._running, timeout_seconds)

    async def untouched(self, timeout_seconds: float) -> bool:
        """Wait until no thread writes to memory of others; False when that takes too long."""
        return await _ended(self._touching, timeout_seconds)

    def close(self) -> None:
        """Take no more work; what hangs is left alone."""
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._writer.shutdown(wait=False, cancel_futures=True)

    def _noted(self, future: "Future[_Result]", among: "set[asyncio.Future[None]]") -> "Future[_Result]":
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        among.add(ended)

        def end() -> None:
            among.discard(ended)
            if not ended.done():
                ended.set_result(None)

        def tell(_: "Future[_Result]") -> None:
            with contextlib.suppress(RuntimeError):  # the loop is gone, and with it all who would want to know
                loop.call_soon_threadsafe(end)

        future.add_done_callback(tell)
        return future


async def result_of(future: "Future[_Result]", what: str, timeout_seconds: float) -> _Result:
    """Return what `future` comes to.

    Raises:
        LateError: it does not in time; a call that has not begun is taken back.
        OSError: as the call raised it.
    """
    waiting = _waiting(future)
    try:
        await asyncio.wait([waiting], timeout=timeout_seconds)
    except asyncio.CancelledError:
        future.cancel()
        raise
    if not waiting.done() or waiting.cancelled():
        future.cancel()
        raise LateError(what, timeout_seconds)
    return waiting.result()


async def _ended(work: "set[asyncio.Future[None]]", timeout_seconds: float) -> bool:
    if not work:
        return True
    _, pending = await asyncio.wait(set(work), timeout=timeout_seconds)
    return not pending


def _waiting(future: "Future[_Result]") -> "asyncio.Future[_Result]":
    """Return an awaitable that nobody's cancellation carries over to the thread."""
    waiting = asyncio.wrap_future(future)
    waiting.add_done_callback(lambda done: None if done.cancelled() else done.exception())
    return waiting
