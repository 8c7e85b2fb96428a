"""Until when this process may write, and its end when that has passed.

Rules: `check()` returns only while the Lease is surely ours, on a clock that also runs while the machine is suspended;
otherwise the process ends on the spot, since nothing that was decided under the old Lease may still happen. There is no
way back into leadership within one process.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from typing import NoReturn

_log = logging.getLogger(__name__)

EXIT_STATUS = 75  # what sysexits.h calls a temporary failure: start me again


def now_seconds() -> float:
    """Return monotonic seconds, those of a suspended machine included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def end_process(reason: str) -> NoReturn:
    """End this process without running another line of it."""
    _log.critical("the process ends: %s", reason)
    logging.shutdown()
    os._exit(EXIT_STATUS)


class Fence:
    """The end of the time in which this process leads."""

    def __init__(self, clock: Callable[[], float] = now_seconds, end: Callable[[str], NoReturn] = end_process) -> None:
        self._clock = clock
        self._end = end
        self._until: float | None = None

    def extend(self, until: float) -> None:
        """Let the process write until a moment on its clock."""
        self._until = until if self._until is None else max(self._until, until)

    def check(self) -> None:
        """Return while the process leads, end it otherwise."""
        if self._until is None:
            self._end("a write was tried without the Lease")
        elif self._clock() >= self._until:
            self._end("the Lease was not renewed in time")

    async def watch(self) -> None:
        """End the process when its time has passed, though it may have nothing to write."""
        while True:
            self.check()
            assert self._until is not None
            await asyncio.sleep(max(0.0, self._until - self._clock()))
