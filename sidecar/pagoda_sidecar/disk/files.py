"""Every call the disk tier makes to the operating system, and nothing else: what can fail, fails here.

Rules: no retries, no decisions; an error leaves as the OSError it came as. All calls block: they belong in the tier's
threads.
"""

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path


def open_file(path: Path, flags: int) -> int:
    """Open `path`, never through a link; return its descriptor."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def close(descriptor: int) -> None:
    """Close a descriptor."""
    os.close(descriptor)


def preadv(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
    """Read into `buffers` from `offset`; return the number of bytes, fewer at the file's end."""
    return os.preadv(descriptor, buffers, offset)


def pwritev(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
    """Write `buffers` at `offset`; return the number of bytes, possibly fewer."""
    return os.pwritev(descriptor, buffers, offset)


def allocate(descriptor: int, size: int) -> None:
    """Give the file `size` bytes on the device."""
    os.posix_fallocate(descriptor, 0, size)


def truncate(descriptor: int, size: int) -> None:
    """Cut the file to `size` bytes and give back what lies past them."""
    os.ftruncate(descriptor, size)


def sync(descriptor: int) -> None:
    """Bring the file's data to the device."""
    os.fdatasync(descriptor)


def unlink(path: Path) -> None:
    """Remove a file."""
    os.unlink(path)


def stat(path: Path) -> os.stat_result:
    """Return what the file system says of `path` itself."""
    return os.stat(path, follow_symlinks=False)


def stat_open(descriptor: int) -> os.stat_result:
    """Return what the file system says of an open file."""
    return os.fstat(descriptor)


def names(folder: Path) -> list[str]:
    """Return the names of the regular files in `folder`: no folders, no links."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]


def lock(descriptor: int) -> None:
    """Take the file's exclusive lock at once.

    Raises:
        BlockingIOError: somebody has it.
    """
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
