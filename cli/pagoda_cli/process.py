"""One running program: its lines, its end, and how it is ended.

Each program leads a process group of its own, which ends with it: whatever it started is killed before its own process
id is given back to the kernel, so that no group number can have been reused by then.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from pagoda_cli.guarding import Guard
from pagoda_protocol.pool.arguments import Command

_LAUNCH = Path(__file__).with_name("launch.py")
_READ_BYTES = 65536
_MAX_LINE_BYTES = 65536


class Process:
    """A program that was started.

    Made in the main thread inside a running loop: the kernel's death signal tells of the thread that forked.
    """

    def __init__(self, command: Command, guard: Guard, on_line: Callable[[str], None]) -> None:
        """Start it; `on_line` gets each line it writes to standard output or error."""
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_LAUNCH), str(os.getpid()), *command.argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(command.environment),
            start_new_session=True,
        )
        self._guard = guard
        guard.add(self.pid)
        self._lines = LineSplitter(on_line)
        self._loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[int] = self._loop.create_future()
        assert self._popen.stdout is not None
        self._output = self._popen.stdout.fileno()
        os.set_blocking(self._output, False)
        self._loop.add_reader(self._output, self._read)
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._on_exit)

    @property
    def pid(self) -> int:
        """Its process id, also the number of its group."""
        return self._popen.pid

    async def exited(self) -> int:
        """Wait for its end; return the exit status, negative for a signal. Cancelling the wait changes nothing."""
        return await asyncio.shield(self._exited)

    async def stop(self, seconds: float) -> bool:
        """Ask it to end, kill it after `seconds`; return whether it ended by itself."""
        self._signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.exited()
                return True
        self.kill()
        await self.exited()
        return False

    def kill(self) -> None:
        """Kill it and all that it started."""
        if not self._exited.done():
            self._kill_group()

    def _signal(self, number: int) -> None:
        if not self._exited.done():
            self._popen.send_signal(number)

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._kill_group()
        self._guard.remove(self.pid)
        code = self._popen.wait()
        self._read()
        self._loop.remove_reader(self._output)
        self._lines.end()
        assert self._popen.stdout is not None
        self._popen.stdout.close()
        self._exited.set_result(code)

    def _read(self) -> None:
        """Pass on what there is, until nothing is left or the program has closed its end."""
        for _ in range(64):  # a program that never stops writing must not keep the loop
            try:
                data = os.read(self._output, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._loop.remove_reader(self._output)
                return
            self._lines.feed(data)


class LineSplitter:
    """Cuts a program's output into lines; one without end is cut where it gets too long."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take the next bytes, which may end anywhere."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._emit(line)
        while len(self._rest) >= _MAX_LINE_BYTES:
            self._emit(self._rest[:_MAX_LINE_BYTES])
            self._rest = self._rest[_MAX_LINE_BYTES:]

    def end(self) -> None:
        """Pass on a last line that nothing ended."""
        if self._rest:
            self._emit(self._rest)
            self._rest = b""

    def _emit(self, line: bytes) -> None:
        self._on_line(line.decode("utf-8", "replace").rstrip("\r"))


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    # A program started with -m must not find modules in the folder the user happens to be in.
    return {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1", **extra}
