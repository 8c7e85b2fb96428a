"""`engine.lock`: the engine's exclusive OFD lock, held for as long as it may touch the arena.

An OFD lock belongs to the open file, not to the process: it goes when the last holder of the descriptor is gone, in
whatever way it died, and works between containers, whose process ids mean nothing to one another.
"""

import fcntl
import os
import struct
from pathlib import Path

_FLOCK = struct.Struct("hhqqi4x")


class LockHeldError(Exception):
    """Another process (or another client in this one) holds the lock."""


class EngineLock:
    """The engine's end. Held from construction until `release` or the end of the process.

    Raises:
        LockHeldError: it is held by somebody else.
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        except OSError as error:
            os.close(self._descriptor)
            raise LockHeldError(f"{path}: held by another engine") from error

    def release(self) -> None:
        """Say that the arena is not touched any more; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def is_free(path: Path) -> bool:
    """Whether nobody holds the lock: proof that no engine touches the arena. Takes nothing."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return False  # no proof
    try:
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, request))
        return bool(answer[0] == fcntl.F_UNLCK)
    except OSError:
        return False
    finally:
        os.close(descriptor)
