"""The arena file: allocated in full before anybody maps it, kept over restarts, never truncated or replaced in place.

    no file / another size / damaged ──► unlink, allocate ──► block size unknown ──► fix_geometry ──► usable
    good superblock ───────────────────────────────────────────────────────────────────────────────► usable

A sparse page past the volume's limit is SIGBUS for whoever touches it first, so every byte is both reserved
(`posix_fallocate`) and written once, in chunks, by us. All of this blocks: call it from a thread.
"""

import contextlib
import errno
import logging
import mmap
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from pagoda_sidecar.arena.headers import HeaderTable, read_boot_count, write_boot_count
from pagoda_sidecar.arena.layout import (
    DIGEST_ROW_BYTES,
    EPOCH_BYTES,
    SUPERBLOCK_BYTES,
    Geometry,
    LayoutError,
    fixed_geometry,
    pack_superblock,
    unfixed_geometry,
    unpack_superblock,
)

_log = logging.getLogger(__name__)

CHUNK_BYTES = 16 * 2**20
_ZEROS = bytes(2**20)


class ArenaError(Exception):
    """The arena cannot be had; the message says why and what would help."""


class ArenaFile:
    """A mapped arena. Made by `open_kept` or `allocate`; all views die with `close`."""

    def __init__(self, path: Path, mapping: mmap.mmap, epoch: bytes, geometry: Geometry, boot_count: int) -> None:
        self.path = path
        self.epoch = epoch
        self.geometry = geometry
        self.boot_count = boot_count
        self._mapping = mapping
        self._view = memoryview(mapping)
        self._headers: HeaderTable | None = None

    @property
    def headers(self) -> HeaderTable:
        """The header table; the geometry must be fixed."""
        assert self.geometry.is_fixed, "the header table has no place before the geometry is fixed"
        if self._headers is None:
            self._headers = HeaderTable(self._view, self.geometry)
        return self._headers

    @property
    def digest_rows(self) -> memoryview:
        """The digest table's bytes, there from the start."""
        return self._view[SUPERBLOCK_BYTES : SUPERBLOCK_BYTES + self.geometry.num_digest_rows * DIGEST_ROW_BYTES]

    def payload(self, slot: int) -> memoryview:
        """Return a writable view of the payload of `slot`, without the slot's padding."""
        start = self.geometry.slot_offset(slot)
        return self._view[start : start + self.geometry.payload_bytes]

    def slot(self, slot: int) -> memoryview:
        """Return a writable view of `slot` with its padding, aligned to a page."""
        start = self.geometry.slot_offset(slot)
        return self._view[start : start + self.geometry.slot_bytes]

    def fix_geometry(self, payload_bytes: int) -> None:
        """Lay out slots for blocks of `payload_bytes`; once in the file's life.

        Raises:
            LayoutError: too few would fit.
        """
        assert not self.geometry.is_fixed, "the geometry of an arena is fixed once"
        geometry = fixed_geometry(self.geometry.file_bytes, payload_bytes)
        data = pack_superblock(self.epoch, geometry)
        self._view[: len(data)] = data
        self.geometry = geometry

    def close(self) -> None:
        """Unmap; if a thread still holds a view of a payload the mapping goes when that view does."""
        if self._headers is not None:
            self._headers.release()
            self._headers = None
        self._view.release()
        with contextlib.suppress(BufferError):
            self._mapping.close()


def open_kept(path: Path, file_bytes: int) -> ArenaFile:
    """Map the arena that an earlier life of the sidecar left at `path`, and count this boot in it.

    Raises:
        ArenaError: there is none of exactly this size, or it is damaged; allocate anew.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError as error:
        raise ArenaError(f"{path}: not there yet") from error
    except OSError as error:
        raise ArenaError(f"{path}: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size != file_bytes:
            raise ArenaError(f"{path}: has {status.st_size} bytes, wanted are {file_bytes}")
        if status.st_blocks * 512 < file_bytes:
            raise ArenaError(f"{path}: was not allocated in full")
        mapping = mmap.mmap(descriptor, file_bytes)
    finally:
        os.close(descriptor)
    with memoryview(mapping) as view:
        try:
            epoch, geometry = unpack_superblock(view[:SUPERBLOCK_BYTES])
            boot_count = read_boot_count(view)
            if geometry.file_bytes != file_bytes:
                raise LayoutError("size")
            if boot_count is None or boot_count >= 2**32 - 1:
                raise LayoutError("boot count")
            write_boot_count(view, boot_count + 1)
            return ArenaFile(path, mapping, epoch, geometry, boot_count + 1)
        except LayoutError as error:
            raise ArenaError(f"{path}: not a usable arena: {error}") from error


def allocate(
    path: Path, file_bytes: int, on_progress: Callable[[int], None], is_cancelled: Callable[[], bool]
) -> ArenaFile:
    """Make a new arena at `path`, whose former file (if any) is unlinked, never reused; tell bytes done so far.

    Raises:
        ArenaError: no room, no right, too small, or cancelled; nothing is left at `path`.
    """
    if file_bytes < SUPERBLOCK_BYTES + unfixed_geometry(file_bytes).num_digest_rows * DIGEST_ROW_BYTES:
        raise ArenaError(f"{file_bytes} bytes are too few for an arena")
    try:
        unlink(path)
        if _free_bytes(path.parent) < file_bytes:  # known before the volume's memory is filled in vain
            raise ArenaError(_no_room(path, file_bytes))
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ArenaError(f"{path}: {error.strerror}") from error
    try:
        _fill(descriptor, file_bytes, on_progress, is_cancelled)
        mapping = mmap.mmap(descriptor, file_bytes)
    except OSError as error:
        unlink(path)
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)
        message = _no_room(path, file_bytes) if is_full else f"{path}: {error.strerror}"
        raise ArenaError(message) from error
    except ArenaError:
        unlink(path)
        raise
    finally:
        os.close(descriptor)
    epoch = secrets.token_bytes(EPOCH_BYTES)
    geometry = unfixed_geometry(file_bytes)
    with memoryview(mapping) as view:
        write_boot_count(view, 1)
        data = pack_superblock(epoch, geometry)
        view[: len(data)] = data
    return ArenaFile(path, mapping, epoch, geometry, 1)


def unlink(path: Path) -> None:
    """Take the file's name away; who has it mapped keeps the old bytes."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def _fill(
    descriptor: int, file_bytes: int, on_progress: Callable[[int], None], is_cancelled: Callable[[], bool]
) -> None:
    """Reserve and touch every page, chunk by chunk."""
    for start in range(0, file_bytes, CHUNK_BYTES):
        if is_cancelled():
            raise ArenaError("cancelled")
        size = min(CHUNK_BYTES, file_bytes - start)
        os.posix_fallocate(descriptor, start, size)
        done = 0
        while done < size:  # writing releases the GIL, touching a mapping would not
            done += os.pwrite(descriptor, memoryview(_ZEROS)[: size - done], start + done)
        on_progress(start + size)


def _no_room(path: Path, file_bytes: int) -> str:
    return (
        f"no room for an arena of {file_bytes} bytes, {_free_bytes(path.parent)} are free on {path.parent}; "
        "make the volume larger or cache.ram.size smaller"
    )


def _free_bytes(folder: Path) -> int:
    volume = os.statvfs(folder)
    return volume.f_bavail * volume.f_frsize
