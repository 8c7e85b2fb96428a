"""Faults between the operator and an API server: a process that dies at its n-th call, before or after it took effect.

transport = Dying(real_transport, at=7, after=True)     # the 7th request (from 0) takes effect, nobody hears of it
lines = DyingLines(real_lines, transport)               # its watches count as requests too
…run until `Killed` comes out, throw everything away, start anew on the same API server…
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import NoReturn

from pagoda_operator.kube.transport import Answer, Request, Transport
from pagoda_operator.scrape.pod_watch import Lines


class Killed(BaseException):
    """The process is gone: no `except Exception` may go on after it."""


class Dying:
    """A transport whose process dies at request number `at`; `.num_requests` counts those that were tried."""

    def __init__(self, transport: Transport, at: int | None = None, after: bool = False) -> None:
        self._transport = transport
        self._at = at
        self.after = after
        self.num_requests = 0
        self.died_at: Request | None = None

    async def send(self, request: Request) -> Answer:
        if not self.is_last():
            return await self._transport.send(request)
        self.died_at = request
        if self.after:
            await self._transport.send(request)
        raise Killed(f"killed {'after' if self.after else 'before'} {request.method} {request.path}")

    def is_last(self) -> bool:
        """Count a request; return whether the process is to die at it."""
        if self.died_at is not None:
            raise Killed("a dead process sends nothing")
        number, self.num_requests = self.num_requests, self.num_requests + 1
        return number == self._at


class DyingLines:
    """The watches of the same process; who dies after one dies at the first line that comes."""

    def __init__(self, lines: Lines, process: Dying) -> None:
        self._lines = lines
        self._process = process

    async def read(self, path: str, query: Mapping[str, str], silence_seconds: float) -> AsyncGenerator[bytes, None]:
        is_last = self._process.is_last()
        if is_last and not self._process.after:
            self._die(path)
        async with contextlib.aclosing(self._lines.read(path, query, silence_seconds)) as lines:
            async for line in lines:
                if is_last:
                    self._die(path)
                yield line

    def _die(self, path: str) -> NoReturn:
        self._process.died_at = Request("GET", path, {"watch": "true"})
        raise Killed(f"killed at the watch {path}")


async def num_deaths(tell: Callable[[int], Awaitable[bool]], at_once: int) -> int:
    """Tell a story for each number of a call, some at once, until it says that there was none at which to die."""
    numbers, deaths, is_over = itertools.count(), 0, False

    async def keep_telling() -> None:
        nonlocal deaths, is_over
        while not is_over:
            if await tell(next(numbers)):
                deaths += 1
            else:
                is_over = True

    await asyncio.gather(*(keep_telling() for _ in range(at_once)))
    return deaths
