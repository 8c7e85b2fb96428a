"""The engine's mapping of the arena. The engine reads the header table and reads or writes payloads it has a lease on.

A mapping is borrowed for the time of a copy. Before the engine attaches anew it waits until nobody borrows it and
unmaps it when the file is another one by then: the sidecar relies on that an attaching engine maps no former arena.
A borrower that never comes back keeps the mapping, and so the engine from attaching: no wait is without an end.
"""

import contextlib
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from pagoda_sidecar.arena.headers import HeaderTable
from pagoda_sidecar.arena.layout import SUPERBLOCK_BYTES, Geometry, LayoutError, unpack_superblock

SETTLE_DOWN_SECONDS = 5.0


class NoArenaError(Exception):
    """The RAM tier is off: nothing is mapped."""


class BorrowedError(Exception):
    """A copy into or out of the arena does not end."""


class MappedArena:
    """One mapped arena file. Views handed out die when it is unmapped."""

    def __init__(self, mapping: mmap.mmap, epoch: bytes, geometry: Geometry, identity: tuple[int, int]) -> None:
        self.epoch = epoch
        self.geometry = geometry
        self.identity = identity
        self._mapping = mapping
        self._view = memoryview(mapping)
        self.headers = HeaderTable(self._view, geometry)

    def payload(self, slot: int) -> memoryview:
        """Return the payload of `slot`, writable.

        Raises:
            NoArenaError: there is no such slot.
        """
        if not 0 <= slot < self.geometry.num_slots:
            raise NoArenaError(f"slot {slot} of {self.geometry.num_slots}")
        start = self.geometry.slot_offset(slot)
        return self._view[start : start + self.geometry.payload_bytes]

    def unmap(self) -> None:
        """Let go; a view somebody kept against the rules keeps the mapping, but nobody gets another one."""
        self.headers.release()
        self._view.release()
        with contextlib.suppress(BufferError):
            self._mapping.close()


class ArenaHolder:
    """Maps and unmaps while threads borrow."""

    def __init__(self, volume: Path) -> None:
        self._volume = volume
        self._arena: MappedArena | None = None
        self._num_borrowed = 0
        self._is_lending = False
        self._condition = threading.Condition()

    @property
    def is_mapped(self) -> bool:
        """Whether there is an arena to borrow."""
        return self._arena is not None and self._is_lending

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[MappedArena]:
        """Keep the mapping there for a while.

        Raises:
            NoArenaError: there is none now.
        """
        with self._condition:
            if self._arena is None or not self._is_lending:
                raise NoArenaError("no arena is mapped")
            arena = self._arena
            self._num_borrowed += 1
        try:
            yield arena
        finally:
            with self._condition:
                self._num_borrowed -= 1
                self._condition.notify_all()

    def settle_down(self, is_closing: bool = False) -> None:
        """Lend no more, wait for borrowers, and unmap if the file is not the one at the path any more (or closing).

        Raises:
            BorrowedError: somebody borrows the mapping still; it stays, and is lent to nobody else.
        """
        with self._condition:
            self._is_lending = False
            if not self._condition.wait_for(lambda: self._num_borrowed == 0, SETTLE_DOWN_SECONDS):
                raise BorrowedError(f"a copy has not ended in {SETTLE_DOWN_SECONDS:g} s")
            if self._arena is not None and (is_closing or self._identity_at_path() != self._arena.identity):
                self._arena.unmap()
                self._arena = None

    def adopt(self, name: str, epoch: bytes, slot_bytes: int) -> None:
        """Lend the arena the sidecar announced, mapping it if it is a new one; an empty name means none.

        Raises:
            LayoutError: the file is not the arena that was announced.
            OSError: it cannot be mapped.
            BorrowedError: the former one is borrowed still.
        """
        known = self._arena
        if known is not None and (not name or known.epoch != epoch or known.identity != self._identity_at_path(name)):
            self.settle_down(is_closing=True)
            known = None
        if not name:
            return
        arena = known or _map(self._volume / name)
        if arena.epoch != epoch or arena.geometry.slot_bytes != slot_bytes:
            arena.unmap()
            self._arena = None
            raise LayoutError("the arena at the path is not the announced one")
        with self._condition:
            self._arena, self._is_lending = arena, True

    def _identity_at_path(self, name: str = "arena") -> tuple[int, int] | None:
        try:
            status = (self._volume / name).stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino


def _map(path: Path) -> MappedArena:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        mapping = mmap.mmap(descriptor, status.st_size)
    finally:
        os.close(descriptor)
    with memoryview(mapping) as view:
        epoch, geometry = unpack_superblock(view[:SUPERBLOCK_BYTES])
    if geometry.file_bytes != status.st_size or not geometry.is_fixed:
        raise LayoutError("size")
    return MappedArena(mapping, epoch, geometry, (status.st_dev, status.st_ino))
