"""The tier's folder on disk: segments written, read, skimmed and removed. Everything here blocks and runs in threads.

Rules: knows nothing of what records are worth. Every error of the operating system leaves as OSError; what is wrong
with a record is a reason, as a metric label.
"""

import contextlib
import errno
import logging
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from pagoda_protocol.records import RECORD_HEADER_BYTES, RecordError, RecordHeader, pack_header, unpack_header
from pagoda_sidecar.disk import files
from pagoda_sidecar.disk.layout import (
    ALIGNMENT,
    EPOCH_BYTES,
    EPOCH_NAME,
    PROBE_NAME,
    padded,
    record_bytes,
    segment_name,
    sequence_of,
)
from pagoda_sidecar.disk.memory import Scratch, aligned, is_aligned
from pagoda_sidecar.disk.transfer import UNSUPPORTED, allocate, named, read_all, write_all

_log = logging.getLogger(__name__)


class FolderTakenError(OSError):
    """Another process keeps a disk tier there."""


class GoneError(OSError):
    """Somebody else has removed or cut what we had there: no trouble of the disk."""


@dataclass(frozen=True)
class NewRecord:
    """A record to be written. `payload` has the header's length, or is a whole slot whose padding may be anything."""

    header: RecordHeader
    payload: memoryview
    uses: int = 1


@dataclass(frozen=True)
class Wanted:
    """A record to be read into `destination`, which has the payload's length or is a whole slot."""

    address: bytes
    offset: int
    payload_bytes: int
    destination: memoryview


@dataclass(frozen=True)
class Found:
    """What skimming a segment found: its records with their offsets, and where the last one ends."""

    sequence: int
    records: list[tuple[int, RecordHeader]]
    end: int
    file_bytes: int


class SegmentFolder:
    """See the head of this file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_direct = False
        self._counts_names = True  # whether a file says so when its name is gone
        self._lock: int | None = None
        self._scratch = Scratch()
        self._zeros = aligned(ALIGNMENT)

    def prepare(self) -> None:
        """Lock the folder and find out whether it can be read and written with O_DIRECT.

        The lock of a folder that is no longer at our path is let go.

        Raises:
            FolderTakenError: another process has it.
            OSError: it cannot be used.
        """
        if self._lock is not None and not self._is_ours():
            self.release()
        if self._lock is None:
            lock = files.open_file(self.path / EPOCH_NAME, os.O_RDWR | os.O_CREAT)
            try:
                files.lock(lock)
            except BlockingIOError as error:
                files.close(lock)
                raise FolderTakenError(errno.EAGAIN, "another sidecar uses the folder") from error
            except OSError:
                files.close(lock)
                raise
            self._lock = lock
        try:
            self._probe(ALIGNMENT, os.O_DIRECT)
            self.is_direct = True
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            self._probe(ALIGNMENT, 0)
            self.is_direct = False

    def probe(self, size: int) -> None:
        """Try to write, with room for `size` bytes more.

        Raises:
            OSError: what is wrong still.
        """
        self._probe(size, os.O_DIRECT if self.is_direct else 0)

    def epoch(self) -> bytes | None:
        """Return the epoch of the folder's content; None when there is none (yet)."""
        assert self._lock is not None, "the folder is prepared"
        data = bytearray(2 * EPOCH_BYTES)
        with named(self.path / EPOCH_NAME):
            num_bytes = files.preadv(self._lock, [memoryview(data)], 0)
        if num_bytes != len(data):
            return None
        try:
            return bytes.fromhex(data.decode("ascii"))
        except ValueError:
            return None

    def new_epoch(self) -> bytes:
        """Begin a new epoch and return it."""
        assert self._lock is not None, "the folder is prepared"
        epoch = secrets.token_bytes(EPOCH_BYTES)
        data = bytearray(epoch.hex().encode())
        with named(self.path / EPOCH_NAME):
            if files.pwritev(self._lock, [memoryview(data)], 0) != len(data):
                raise OSError(errno.EIO, "the epoch was written in part")
        return epoch

    def sequences(self) -> list[int]:
        """Return which segments there are, oldest first."""
        found = (sequence_of(name) for name in files.names(self.path))
        return sorted(sequence for sequence in found if sequence is not None)

    def present(self) -> set[int] | None:
        """Return which segments there are; None when the folder at our path is not the one we have locked."""
        return set(self.sequences()) if self._is_ours() else None

    def skim(self, sequence: int, is_newest: bool) -> Found:
        """Read a segment's headers, up to the first that is none; of a torn last record nothing is left."""
        path = self._path(sequence)
        status = files.stat(path)
        file_bytes = max(status.st_size, status.st_blocks * 512)
        records: list[tuple[int, RecordHeader]] = []
        page, offset = aligned(ALIGNMENT), 0
        with named(path), self._opened(path) as descriptor:
            while offset + ALIGNMENT <= status.st_size:
                if files.preadv(descriptor, [page], offset) != ALIGNMENT:
                    break
                try:
                    header = unpack_header(page[:RECORD_HEADER_BYTES])
                except RecordError:
                    break
                end = offset + record_bytes(header.payload_bytes)
                if end > status.st_size:
                    break
                records.append((offset, header))
                offset = end
            if records and (is_newest or offset < status.st_size):  # it may have been open when its writer was killed
                last, header = records[-1]
                view = aligned(header.payload_bytes)
                if self._read(descriptor, [Wanted(header.address, last, header.payload_bytes, view)]) != [header]:
                    records.pop()
                    offset = last
        return Found(sequence, records, offset, file_bytes)

    def trim(self, sequence: int, size: int) -> None:
        """Cut a segment of an earlier life behind its last record, or remove it when it has none."""
        if size == 0:
            self.remove(sequence)
            return
        descriptor = files.open_file(self._path(sequence), os.O_RDWR)
        try:
            files.truncate(descriptor, size)
        finally:
            files.close(descriptor)

    def create(self, sequence: int, size: int) -> int:
        """Make a segment of `size` bytes; return its descriptor. Nothing is left of one that cannot be made.

        Raises:
            FileExistsError: the name is taken by something that is not ours.
            GoneError: the folder at our path is another one.
        """
        if not self._is_ours():
            raise GoneError(errno.ESTALE, "the folder was replaced", str(self.path))
        path = self._path(sequence)
        descriptor = files.open_file(path, self._flags(os.O_RDWR | os.O_CREAT | os.O_EXCL))
        try:
            with named(path):
                allocate(descriptor, size)
        except OSError:
            files.close(descriptor)
            self.remove(sequence)
            raise
        return descriptor

    def append(self, descriptor: int, offset: int, records: Sequence[NewRecord]) -> None:
        """Write records one after another from `offset` on.

        Raises:
            GoneError: the file has no name any more, so nobody would find them.
            OSError: some or all of them are not there; whatever is must not be counted on.
        """
        if self._counts_names and files.stat_open(descriptor).st_nlink == 0:
            raise GoneError(errno.ENOENT, "the open segment was removed", str(self.path))
        pages = aligned(ALIGNMENT * len(records))
        buffers: list[memoryview] = []
        for position, record in enumerate(records):
            page = pages[position * ALIGNMENT : (position + 1) * ALIGNMENT]
            page[:RECORD_HEADER_BYTES] = pack_header(record.header)
            buffers += [page, *self._outgoing(record)]
        with named(self.path):
            write_all(descriptor, buffers, offset)

    def seal(self, descriptor: int, size: int) -> None:
        """Close a segment for good, cut behind its last record."""
        try:
            files.truncate(descriptor, size)
            if not self.is_direct:  # else every write has told of its own failure
                files.sync(descriptor)
        finally:
            files.close(descriptor)

    def read(self, sequence: int, wanted: Sequence[Wanted]) -> list[RecordHeader | str]:
        """Read adjacent records, in the order of the file, and verify each; return its header or what is wrong with it.

        Raises:
            GoneError: the segment is not there, or shorter than it was.
            OSError: nothing can be said of any of them.
        """
        path = self._path(sequence)
        try:
            with named(path), self._opened(path) as descriptor:
                results = self._read(descriptor, wanted)
                is_cut = "length" in results and files.stat_open(descriptor).st_size < _end(wanted[-1])
        except OSError as error:
            if _is_regular(path):
                raise
            raise GoneError(errno.ENOENT, "a segment was removed", str(path)) from error
        if is_cut:
            raise GoneError(errno.ENODATA, "a segment was cut", str(path))
        return results

    def remove(self, sequence: int) -> None:
        """Remove a segment's file, if it is there: nothing in another folder at our path, nor what is no file."""
        if (self._lock is None or self._is_ours()) and _is_regular(self._path(sequence)):
            _unlink_if_there(self._path(sequence))

    def release(self) -> None:
        """Let another process have the folder."""
        if self._lock is not None:
            files.close(self._lock)
            self._lock = None

    def _read(self, descriptor: int, wanted: Sequence[Wanted]) -> list[RecordHeader | str]:
        direct = [self._is_straight(one) for one in wanted]
        bounced = sum(
            padded(one.payload_bytes) for one, is_straight in zip(wanted, direct, strict=True) if not is_straight
        )
        memory = self._scratch.get(ALIGNMENT * len(wanted) + bounced)
        pages, rest = memory[: ALIGNMENT * len(wanted)], memory[ALIGNMENT * len(wanted) :]
        buffers: list[memoryview] = []
        payloads: list[memoryview] = []
        for position, one in enumerate(wanted):
            size = padded(one.payload_bytes)
            if direct[position]:
                payloads.append(one.destination[:size])
            else:
                payloads.append(rest[:size])
                rest = rest[size:]
            buffers += [pages[position * ALIGNMENT : (position + 1) * ALIGNMENT], payloads[-1]]
        num_read = read_all(descriptor, buffers, wanted[0].offset)
        results: list[RecordHeader | str] = []
        for position, one in enumerate(wanted):
            payload = payloads[position][: one.payload_bytes]
            page = pages[position * ALIGNMENT : position * ALIGNMENT + RECORD_HEADER_BYTES]
            is_whole = num_read >= one.offset - wanted[0].offset + ALIGNMENT + one.payload_bytes
            result = _checked(one, page, payload) if is_whole else "length"
            if isinstance(result, RecordHeader) and not direct[position]:
                one.destination[: one.payload_bytes] = payload
            results.append(result)
        return results

    def _is_straight(self, wanted: Wanted) -> bool:
        return is_aligned(wanted.destination) and len(wanted.destination) >= padded(wanted.payload_bytes)

    def _outgoing(self, record: NewRecord) -> list[memoryview]:
        """Return buffers with the record's payload and padding that may be written as they are."""
        length = record.header.payload_bytes
        size = padded(length)
        if is_aligned(record.payload) and len(record.payload) >= size:
            return [record.payload[:size]]
        if not self.is_direct:
            return (
                [record.payload[:length], self._zeros[: size - length]] if size > length else [record.payload[:length]]
            )
        bounce = aligned(size)
        bounce[:length] = record.payload[:length]
        return [bounce]

    def _probe(self, size: int, flags: int) -> None:
        path = self.path / PROBE_NAME
        if _is_regular(path):
            _unlink_if_there(path)
        descriptor = files.open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags)
        try:
            with named(path):
                self._counts_names = files.stat_open(descriptor).st_nlink > 0
                if size > ALIGNMENT:
                    allocate(descriptor, size)
                page = aligned(ALIGNMENT)
                write_all(descriptor, [page], 0)
                files.sync(descriptor)
                if read_all(descriptor, [page], 0) != ALIGNMENT:
                    raise OSError(errno.EIO, "what was written cannot be read")
        finally:
            files.close(descriptor)
            _unlink_if_there(path)

    def _is_ours(self) -> bool:
        """Whether the folder at our path is the one we have locked, and its lock the one others find."""
        if self._lock is None:
            return False
        try:
            there = files.stat(self.path / EPOCH_NAME)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(there, files.stat_open(self._lock))

    @contextlib.contextmanager
    def _opened(self, path: Path) -> Iterator[int]:
        descriptor = files.open_file(path, self._flags(os.O_RDONLY))
        try:
            yield descriptor
        finally:
            files.close(descriptor)

    def _flags(self, flags: int) -> int:
        return flags | os.O_DIRECT if self.is_direct else flags

    def _path(self, sequence: int) -> Path:
        return self.path / segment_name(sequence)


def _end(wanted: Wanted) -> int:
    return wanted.offset + record_bytes(wanted.payload_bytes)


def _is_regular(path: Path) -> bool:
    """Whether there is a file at `path`; a folder or a link there is not ours."""
    try:
        return stat.S_ISREG(files.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _checked(wanted: Wanted, page: memoryview, payload: memoryview) -> RecordHeader | str:
    try:
        header = unpack_header(page)
    except RecordError as error:
        return error.reason
    if header.address != wanted.address or header.payload_bytes != wanted.payload_bytes:
        return "address"
    return header if xxhash.xxh3_128_digest(payload) == header.xxh3 else "checksum"


def _unlink_if_there(path: Path) -> None:
    try:
        files.unlink(path)
    except FileNotFoundError:
        pass
