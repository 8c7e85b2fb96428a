"""Writing: records into the open segment, segment after segment, within the cap at every moment.

    append ──full──► close the open one ──► evict until one more fits ──► create ──► evict one ahead, moving what is hot

One eviction is done ahead, right after a segment was opened: so there is room in the new one for what is worth keeping
of the old one, and nothing has to wait in memory or in a temporary file while the cap is reached. A segment counts in
full from before it is created until its file is known to be smaller or gone.

Rules: one caller at a time; its task is never cancelled. Errors leave as OSError, with the index right about what can
be read.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from pagoda_protocol.records import RecordHeader
from pagoda_sidecar.disk.folder import NewRecord, SegmentFolder, Wanted
from pagoda_sidecar.disk.health import LateError
from pagoda_sidecar.disk.index import DiskIndex, Entry, Segment
from pagoda_sidecar.disk.layout import FILE_OVERHEAD_BYTES, following, padded, record_bytes
from pagoda_sidecar.disk.memory import aligned
from pagoda_sidecar.disk.settings import DiskSettings
from pagoda_sidecar.disk.threads import DiskThreads, result_of

_Result = TypeVar("_Result")
_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.005
_MAX_TAKEN_NAMES = 16


@dataclass
class _Open:
    """The segment being written."""

    segment: Segment
    descriptor: int
    position: int = 0

    @property
    def room(self) -> int:
        return self.segment.file_bytes - self.position


class SegmentWriter:
    """See the head of this file."""

    def __init__(
        self,
        folder: SegmentFolder,
        index: DiskIndex,
        threads: DiskThreads,
        settings: DiskSettings,
        on_damage: Callable[[str], None],
    ) -> None:
        self.cap_bytes = 0
        self.segment_bytes = 0
        self.next_sequence = 1
        self.num_moved = 0
        self._folder = folder
        self._index = index
        self._threads = threads
        self._settings = settings
        self._on_damage = on_damage
        self._open: _Open | None = None

    @property
    def has_spare_room(self) -> bool:
        """Whether one more segment fits under the cap."""
        return self._index.used_bytes + self.segment_bytes + FILE_OVERHEAD_BYTES <= self.cap_bytes

    async def append(self, records: Sequence[NewRecord], is_stored: list[bool]) -> None:
        """Write `records`, noting in `is_stored` which of them are there.

        Raises:
            OSError: the rest are not.
        """
        position = 0
        while position < len(records):
            if record_bytes(records[position].header.payload_bytes) > self.segment_bytes:
                position += 1
                continue
            if self._open is None or self._open.room < record_bytes(records[position].header.payload_bytes):
                if not await self._roll():
                    return
                continue
            batch = self._batch(records[position:], self._open.room)
            offsets = await self._write(batch)
            segment = self._open.segment
            for number, (record, offset) in enumerate(zip(batch, offsets, strict=True), position):
                is_stored[number] = self._index.add(record.header, segment, offset, record.uses) is not None
            self._index.advance(len(batch))
            position += len(batch)

    async def close(self) -> None:
        """Close the open segment.

        Raises:
            OSError: its file may be larger than what it holds, and counts so.
        """
        if self._open is not None:
            await result_of(self._retire(), "closing a segment", self._settings.write_seconds)

    async def shrink(self) -> None:
        """Evict until the cap holds, as after it was lowered.

        Raises:
            OSError: it does not yet.
        """
        while self._index.used_bytes > self.cap_bytes and (victim := self._index.victim(None)) is not None:
            await self._evict(victim)

    async def remove(self, segment: Segment) -> None:
        """Remove a segment whose records are forgotten.

        Raises:
            OSError: it is there still, and counts.
        """
        await self._do("removing a segment", self._threads.write(self._folder.remove, segment.sequence))
        self._index.forget_segment(segment)

    async def let_go(self, segment: Segment) -> None:
        """Forget a segment whose file somebody else has removed or cut; what is left of it goes.

        Raises:
            OSError: something of it is there still, and counts.
        """
        if self._open is not None and self._open.segment is segment:
            self._retire()
        for entry in list(segment.entries):
            self._index.remove(entry)
        await self.remove(segment)

    def _batch(self, records: Sequence[NewRecord], room: int) -> list[NewRecord]:
        batch: list[NewRecord] = []
        room = min(room, max(self._settings.batch_bytes, record_bytes(records[0].header.payload_bytes)))
        for record in records:
            room -= record_bytes(record.header.payload_bytes)
            if room < 0:
                break
            batch.append(record)
        return batch

    async def _write(self, batch: Sequence[NewRecord]) -> list[int]:
        """Write `batch` at the open segment's end; return the offsets."""
        target = self._open
        assert target is not None, "somebody opened a segment"
        offsets, end = [], target.position
        for record in batch:
            offsets.append(end)
            end += record_bytes(record.header.payload_bytes)
        try:
            await self._do(
                "a write", self._threads.write(self._folder.append, target.descriptor, target.position, batch)
            )
        except OSError:
            self._retire()  # what the failed write has left behind is cut off
            raise
        target.position = end
        return offsets

    async def _roll(self) -> bool:
        """Open the next segment; False when none can be evicted for it just now."""
        await self.close()
        while not self.has_spare_room:
            victim = self._index.victim(None)
            if victim is None:
                return False
            await self._evict(victim)
        await self._create()
        if not self.has_spare_room:
            assert self._open is not None, "one was created"
            victim = self._index.victim(self._open.segment)
            if victim is not None:
                await self._compact(victim)
                await self._evict(victim)
        return True

    async def _create(self) -> None:
        for _ in range(_MAX_TAKEN_NAMES):
            try:
                await self._create_next()
            except FileExistsError:
                continue  # something foreign has that name
            return
        await self._create_next()

    async def _create_next(self) -> None:
        while self.next_sequence in self._index.segments:  # numbers have begun again
            self.next_sequence = following(self.next_sequence)
        sequence, self.next_sequence = self.next_sequence, following(self.next_sequence)
        segment = self._index.open_segment(sequence, self.segment_bytes)
        creating = self._threads.write(self._folder.create, sequence, self.segment_bytes)
        try:
            descriptor = await self._do("creating a segment", creating)
        except LateError:
            self._give_up(segment, creating)
            raise
        except OSError:
            self._index.forget_segment(segment)
            raise
        self._open = _Open(segment, descriptor)

    def _give_up(self, segment: Segment, creating: "Future[int]") -> None:
        """Remove a segment that is created too late, whenever that is."""

        def discard() -> None:
            if not creating.cancelled() and creating.exception() is None:
                self._folder.seal(creating.result(), 0)
            self._folder.remove(segment.sequence)

        self._forget_when_done(segment, self._threads.write(discard))

    def _retire(self) -> "Future[None]":
        """Let go of the open segment; its file is cut and closed in the writing thread."""
        target, self._open = self._open, None
        assert target is not None, "there is an open segment"
        if target.position == 0:
            self._index.remove_segment(target.segment)

            def discard() -> None:
                self._folder.seal(target.descriptor, 0)
                self._folder.remove(target.segment.sequence)

            return self._forget_when_done(target.segment, self._threads.write(discard))

        def cut() -> None:
            target.segment.file_bytes = target.position

        sealing = self._threads.write(self._folder.seal, target.descriptor, target.position)
        return self._then(sealing, cut)

    def _forget_when_done(self, segment: Segment, removing: "Future[None]") -> "Future[None]":
        return self._then(removing, lambda: self._index.forget_segment(segment))

    def _then(self, work: "Future[None]", act: Callable[[], None]) -> "Future[None]":
        """Call `act` in the control loop when `work` has succeeded."""
        loop = asyncio.get_running_loop()

        def done(future: "Future[None]") -> None:
            if not future.cancelled() and future.exception() is None and not loop.is_closed():
                loop.call_soon_threadsafe(act)

        work.add_done_callback(done)
        return work

    async def _compact(self, victim: Segment) -> None:
        """Write again what is worth keeping of `victim`; a failure to read it costs only that."""
        target = self._open
        assert target is not None, "one was created"
        survivors = self._index.survivors(victim, min(self.segment_bytes // 2, target.room))
        for batch in self._moves(survivors):
            try:
                headers = await result_of(
                    self._threads.read(self._folder_read_all, victim.sequence, [wanted for _, wanted in batch]),
                    "a read",
                    self._settings.read_seconds,
                )
            except OSError as error:
                _log.warning("a segment is evicted unread: %s", error)
                return
            await self._move(batch, headers)

    def _moves(self, survivors: Sequence[Entry]) -> Iterator[list[tuple[Entry, Wanted]]]:
        """Yield survivors by batches, with memory for the batch at hand alone."""
        batch: list[tuple[Entry, Wanted]] = []
        room = self._settings.batch_bytes
        for entry in survivors:
            if batch and entry.num_bytes > room:
                yield batch
                batch, room = [], self._settings.batch_bytes
            room -= entry.num_bytes
            view = aligned(padded(entry.payload_bytes))
            batch.append((entry, Wanted(entry.link.address, entry.offset, entry.payload_bytes, view)))
        if batch:
            yield batch

    def _folder_read_all(self, sequence: int, wanted: Sequence[Wanted]) -> list[RecordHeader | str]:
        return [self._folder.read(sequence, [one])[0] for one in wanted]

    async def _move(self, batch: Sequence[tuple[Entry, Wanted]], headers: Sequence[RecordHeader | str]) -> None:
        sound: list[tuple[Entry, NewRecord]] = []
        for (entry, wanted), header in zip(batch, headers, strict=True):
            if isinstance(header, RecordHeader):
                sound.append((entry, NewRecord(header, wanted.destination)))
            elif entry.is_live:
                self._index.remove(entry)
                self._on_damage(header)
        if not sound:
            return
        offsets = await self._write([record for _, record in sound])
        assert self._open is not None, "the write has succeeded"
        for (entry, _), offset in zip(sound, offsets, strict=True):
            if entry.is_live:
                self._index.move(entry, self._open.segment, offset)
                self.num_moved += 1

    async def _evict(self, victim: Segment) -> None:
        self._index.remove_segment(victim)
        waited = 0.0
        while victim.num_readers and waited < self._settings.read_seconds:
            await asyncio.sleep(_LOOK_SECONDS)  # its bytes would be gone only when they are done
            waited += _LOOK_SECONDS
        await self.remove(victim)

    async def _do(self, what: str, work: "Future[_Result]") -> _Result:
        return await result_of(work, what, self._settings.write_seconds)
