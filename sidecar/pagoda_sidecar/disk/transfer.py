"""Whole writes and reads out of calls that may do a part. Everything here blocks and fails as OSError."""

import contextlib
import errno
from collections.abc import Iterator, Sequence
from pathlib import Path

from pagoda_sidecar.disk import files
from pagoda_sidecar.disk.layout import ALIGNMENT

# What file systems answer that cannot do a thing at all
UNSUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
_BUFFERS_PER_CALL = 512


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Let an error say which file it is about."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def allocate(descriptor: int, size: int) -> None:
    """Give the file `size` bytes where the file system can reserve."""
    try:
        files.allocate(descriptor, size)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise  # a file system that cannot reserve lets the file grow as it is written


def write_all(descriptor: int, buffers: Sequence[memoryview], offset: int) -> None:
    """Write everything; what the system took in part is written again from the last aligned byte."""
    total, done = sum(map(len, buffers)), 0
    while done < total:
        num_bytes = files.pwritev(descriptor, _rest(buffers, done), offset + done)
        progress = num_bytes if done + num_bytes == total else num_bytes // ALIGNMENT * ALIGNMENT
        if progress <= 0:
            raise OSError(errno.EIO, "the disk takes no bytes")
        done += progress


def read_all(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
    """Read until all buffers are full or the file ends; return how many bytes there were."""
    total, done = sum(map(len, buffers)), 0
    while done < total:
        num_bytes = files.preadv(descriptor, _rest(buffers, done), offset + done)
        done += num_bytes
        if num_bytes == 0 or done % ALIGNMENT:
            break
    return done


def _rest(buffers: Sequence[memoryview], done: int) -> list[memoryview]:
    """Return what is left of `buffers` behind their first `done` bytes, as far as one call takes it."""
    rest: list[memoryview] = []
    for buffer in buffers:
        if done >= len(buffer):
            done -= len(buffer)
            continue
        rest.append(buffer[done:])
        done = 0
        if len(rest) == _BUFFERS_PER_CALL:
            break
    return rest
