"""The disk tier's system calls with an accident at a chosen one: `files` as a machine that may fail or be switched off.

A switched-off machine does nothing any more, whatever its threads still ask; `restart` closes what it had open, as the
kernel does for a dead process.
"""

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pagoda_sidecar.disk import files

# What changes the folder; reads only look
CHANGING = ("open_file", "pwritev", "allocate", "truncate", "sync", "unlink")
READING = ("preadv", "stat", "stat_open", "names")
Accident = Callable[[str, tuple[Any, ...]], None]


class SwitchedOff(BaseException):
    """What a call of a dead process comes to; nobody may catch it as a fault of the disk."""


class Machine:
    """Hooks `files`; `accident(name, arguments)` is asked before each call and may raise or sleep."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.accident: Accident = lambda name, arguments: None
        self.max_write_bytes: int | None = None
        self.calls: list[str] = []
        self._is_off = False
        self._lock = threading.Lock()
        self._open: set[int] = set()
        self._real = {name: getattr(files, name) for name in (*CHANGING, *READING, "close")}
        for name in self._real:
            monkeypatch.setattr(files, name, self._hooked(name))

    def switch_off(self, torn: tuple[int, Sequence[memoryview], int] | None = None, num_bytes: int = 0) -> None:
        """Do nothing more, but for the first bytes of the write that was under way."""
        if torn is not None:
            descriptor, buffers, offset = torn
            data = b"".join(buffers)[:num_bytes]
            plain = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY)
            os.pwrite(plain, data, offset)
            os.close(plain)
        self._is_off = True
        raise SwitchedOff

    def restart(self) -> None:
        """Begin a new life, without accidents."""
        with self._lock:
            self._is_off = False
            self.accident = lambda name, arguments: None
            for descriptor in self._open:
                os.close(descriptor)
            self._open.clear()
            self.calls.clear()

    @property
    def is_off(self) -> bool:
        return self._is_off

    def _hooked(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if name == "close":
                with self._lock:
                    if arguments[0] in self._open:  # else a dead process lets go of it
                        self._open.discard(arguments[0])
                        os.close(arguments[0])
                return None
            with self._lock:
                if self._is_off:
                    raise SwitchedOff
                if name in CHANGING:
                    self.calls.append(name)
            self.accident(name, arguments)
            if name == "pwritev" and self.max_write_bytes is not None:
                return self._short_write(*arguments)
            result = self._real[name](*arguments)
            if name == "open_file":
                with self._lock:
                    self._open.add(result)
            return result

        return call

    def _short_write(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        assert self.max_write_bytes is not None
        plain = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY)
        try:
            return os.pwrite(plain, b"".join(buffers)[: self.max_write_bytes], offset)
        finally:
            os.close(plain)


def at_change(machine: Machine, number: int, act: Callable[[str, tuple[Any, ...]], None]) -> Accident:
    """Return an accident that happens at the change with this number, counted from now."""
    base = len(machine.calls)

    def accident(name: str, arguments: tuple[Any, ...]) -> None:
        if name in CHANGING and len(machine.calls) - base == number + 1:
            act(name, arguments)

    return accident


def failing(code: int) -> Callable[[str, tuple[Any, ...]], None]:
    """Return what fails with this errno."""

    def fail(name: str, arguments: tuple[Any, ...]) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def always(names: Sequence[str], act: Callable[[str, tuple[Any, ...]], None]) -> Accident:
    """Return an accident that happens at every call of these names."""
    return lambda name, arguments: act(name, arguments) if name in names else None


def sleeping(seconds: float) -> Callable[[str, tuple[Any, ...]], None]:
    """Return what takes so long."""
    return lambda name, arguments: time.sleep(seconds)


@contextlib.contextmanager
def small_disk(machine: Machine, folder: Path, size: int) -> Iterator[None]:
    """Make `folder` a file system with `size` bytes: a real one where we may mount, else one that counts."""
    options = f"mount -t tmpfs -o size={size} tmpfs {folder}"
    if os.geteuid() == 0 and os.system(options) == 0:
        try:
            yield
        finally:
            os.system(f"umount -l {folder}")
        return

    def count(name: str, arguments: tuple[Any, ...]) -> None:
        used = sum(path.stat().st_blocks * 512 for path in folder.iterdir())
        wanted = arguments[1] if name == "allocate" else 0
        if name in ("allocate", "pwritev") and used + wanted > size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    machine.accident = count
    yield
