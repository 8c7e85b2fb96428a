"""A file looked at again and again, without ever being held up by what lies at its path.

Rules: nothing but a regular file is opened, for opening another thing may wait for ever or do something; all file calls
are made in threads, one at a time, since a mount that hangs keeps them, and whoever waits does so once.
"""

import asyncio
import concurrent.futures
import errno
import os
import stat
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

READ_SECONDS = 2.0
Identity = tuple[int, int, int, int]  # device, inode, size, time


@dataclass(frozen=True)
class Look:
    """What was seen of a file at one time: a version and its content, None if it is the known one, or a problem."""

    identity: Identity | None = None
    content: bytes | None = None
    problem: OSError | None = None


class Watch:
    """Looks at one file, for one reader."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._look: Future[Look] | None = None
        self._is_late = False

    async def look(self, known: Identity | None) -> Look:
        """Return what is seen within `READ_SECONDS`; the content of the version `known` is not read again."""
        look = self._begin(known)
        if not self._is_late:
            await asyncio.wait({asyncio.wrap_future(look)}, timeout=READ_SECONDS)
        return self._outcome(look)

    def look_now(self, known: Identity | None) -> Look:
        """Do as `look` does, blocking."""
        look = self._begin(known)
        if not self._is_late:
            concurrent.futures.wait({look}, timeout=READ_SECONDS)
        return self._outcome(look)

    def _begin(self, known: Identity | None) -> "Future[Look]":
        if self._look is None or self._look.done():
            self._look, self._is_late = Future(), False
            arguments = (self._look, self._path, known)
            threading.Thread(target=_look_at, args=arguments, name="file-watch", daemon=True).start()
        return self._look

    def _outcome(self, look: "Future[Look]") -> Look:
        self._is_late = not look.done()
        if self._is_late:
            return Look(problem=OSError(errno.ETIMEDOUT, f"no answer in {READ_SECONDS:g} s", str(self._path)))
        return look.result()


def read_regular(path: Path) -> tuple[Identity, bytes]:
    """Return the version and the content of a regular file.

    Raises:
        OSError: it cannot be read, or is something else.
    """
    _check_regular(path, path.stat())
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        _check_regular(path, status)  # another thing may have taken its place
        return _identity(status), file.read()


def _look_at(look: "Future[Look]", path: Path, known: Identity | None) -> None:
    try:
        identity = _identity(path.stat())
        look.set_result(Look(identity) if identity == known else Look(*read_regular(path)))
    except OSError as error:
        look.set_result(Look(problem=error))


def _check_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(path))


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
