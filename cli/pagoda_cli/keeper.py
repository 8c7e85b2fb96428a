"""Keeps one part running: starts it, waits until it is ready, starts it again when it ends.

STARTING ──ready──► READY ──ends──► WAITING ──backoff──► STARTING
    └── ends, or is not ready in time: WAITING; at the third time without ever having been ready, or at once
        where its status says that it never will be: FAILED
any ──stop──► STOPPED
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from pagoda_cli.guarding import Guard
from pagoda_cli.plan import Part
from pagoda_cli.probe import is_ready
from pagoda_cli.problems import StartupFailedError
from pagoda_cli.process import Process
from pagoda_cli.progress import parse_progress
from pagoda_protocol.log_lines import last_words
from pagoda_runtime.deadlines import Deadline, backoff
from pagoda_runtime.stop import CANNOT_START

MAX_FAILED_STARTS = 3
_LAST_LINES = 15


class State(Enum):
    """Where a part is in its life."""

    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Pace:
    """How often to look and how long to wait; tests hurry."""

    probe_seconds: float = 0.2
    first_backoff_seconds: float = 1.0
    max_backoff_seconds: float = 15.0
    stable_seconds: float = 60.0
    """A part that was ready this long has earned a short first backoff again."""
    kill_seconds: float = 2.0
    """How long a part that is not ready in time may take to end."""


class Keeper:
    """One part and its present process."""

    def __init__(
        self,
        part: Part,
        host: str,
        guard: Guard,
        pace: Pace,
        on_line: Callable[[Part, str], None],
        on_change: Callable[["Keeper", str], None],
    ) -> None:
        """`on_change` is called after each change of state, with a sentence about it."""
        self.part = part
        self.state = State.WAITING
        self.num_starts = 0
        self.process: Process | None = None
        self._host = host
        self._guard = guard
        self._pace = pace
        self._on_line = on_line
        self._on_change = on_change
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)

    async def keep(self) -> None:
        """Keep the part running until cancelled, which leaves its process to `stop`.

        Raises:
            StartupFailedError: it will never be ready, or ended too often before it was.
        """
        was_ever_ready = False
        waits = self._waits()
        while True:
            ready_seconds, code = await self._live()
            end = self._end(code)
            was_ever_ready = was_ever_ready or ready_seconds is not None
            if not was_ever_ready and (code == CANNOT_START or self.num_starts >= MAX_FAILED_STARTS):
                self._change(State.FAILED, end)
                raise StartupFailedError(self._obituary(end))
            if ready_seconds is not None and ready_seconds >= self._pace.stable_seconds:
                waits = self._waits()
            wait = next(waits)
            self._change(State.WAITING, f"{end}; starting again in {wait:.1f} s")
            await asyncio.sleep(wait)

    async def stop(self, seconds: float) -> None:
        """End the process; `keep` has been cancelled before."""
        if self.process is not None and self.state in (State.STARTING, State.READY):
            ended = await self.process.stop(seconds)
            self._change(State.STOPPED, "stopped" if ended else f"killed: it had not ended in {seconds:.0f} s")
        elif self.state is not State.FAILED:
            self._change(State.STOPPED, "stopped")

    def kill(self) -> None:
        """Kill the process at once."""
        if self.process is not None:
            self.process.kill()

    async def _live(self) -> tuple[float | None, int | None]:
        """Live one life of the process; return how many seconds it was ready and its exit status.

        None instead: it was never ready; it had to be ended, since it was not ready in time.
        """
        self.num_starts += 1
        self._last_lines.clear()
        started = time.monotonic()
        self.process = Process(self.part.command, self._guard, self._line)
        self._change(State.STARTING, "")
        exited = asyncio.ensure_future(self.process.exited())
        if not await self._until_ready(exited):
            if not exited.done():
                await self.process.stop(self._pace.kill_seconds)
                await exited
                return None, None
            return None, exited.result()
        ready = time.monotonic()
        address = f"{self._host}:{self.part.port}"
        self._change(State.READY, f"ready on {address} after {ready - started:.1f} s")
        code = await exited
        return time.monotonic() - ready, code

    async def _until_ready(self, exited: "asyncio.Future[int]") -> bool:
        deadline = Deadline(self.part.startup_seconds)
        while not deadline.expired and not exited.done():
            if await is_ready(self._host, self.part.port, self.part.ready_path) and not exited.done():
                return True
            await asyncio.wait([exited], timeout=self._pace.probe_seconds)
        return False

    def _line(self, line: str) -> None:
        if parse_progress(line) is None:  # how far it came explains no end
            self._last_lines.append(line)
        self._on_line(self.part, line)

    def _change(self, state: State, sentence: str) -> None:
        self.state = state
        self._on_change(self, sentence)

    def _waits(self) -> Iterator[float]:
        return backoff(self._pace.first_backoff_seconds, self._pace.max_backoff_seconds)

    def _obituary(self, end: str) -> list[str]:
        part = self.part
        again = f", for the {MAX_FAILED_STARTS}rd time" if self.num_starts == MAX_FAILED_STARTS else ""
        why = f": {said}" if (said := last_words("\n".join(self._last_lines))) else ""
        lines = [f"{part.title}: {end}{again}, and was never ready{why}"]
        if self._last_lines:
            lines += ["its last lines:", *(f"{part.title} │ {line}" for line in self._last_lines)]
        return [*lines, f"its command: {' '.join(part.command.argv)}"]

    def _end(self, code: int | None) -> str:
        if code is None:
            return f"was not ready in {self.part.startup_seconds:.0f} s"
        return f"ended with status {code}" if code >= 0 else f"was killed by signal {-code}"
