"""The disk tier: sealed records in segments, found by address, within a byte cap that holds at every moment.

    set_namespace ──► index being read (off) ──► on ◄──probe succeeds──► off with a reason (full, read-only, slow, …)
                           │ SegmentReader: fetch            ▲                     │
                           │ SegmentWriter: store            └──── tried again ────┘

Everything here lives in the control loop, which never waits for the disk: the calls are made in the tier's threads,
with deadlines. Nothing here raises for the disk: a fault is a miss or a record that is not stored, and the reason is
told (`off_reason`, `on_changed`).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pagoda_protocol.records import RecordHeader
from pagoda_runtime.logs import fields
from pagoda_sidecar.disk.chains import RAM, Chains, Link
from pagoda_sidecar.disk.folder import GoneError, NewRecord, SegmentFolder
from pagoda_sidecar.disk.health import BackOff, Health, LateError
from pagoda_sidecar.disk.index import DiskIndex, Entry, Segment
from pagoda_sidecar.disk.layout import ALIGNMENT, record_bytes, segment_bytes
from pagoda_sidecar.disk.opening import load_index, remove_all
from pagoda_sidecar.disk.reader import Fetch, SegmentReader
from pagoda_sidecar.disk.settings import DiskSettings
from pagoda_sidecar.disk.threads import DiskThreads, result_of
from pagoda_sidecar.disk.writer import SegmentWriter

_log = logging.getLogger(__name__)

NOT_CONFIGURED = "no disk is configured"
NO_NAMESPACE = "no engine has announced its blocks"
MAX_HOT = 4096  # of a hand-over
READING_INDEX = "the disk's index is being read"


class DiskTier:
    """See the head of this file. `folder` None or `cap_bytes` 0: off for good."""

    def __init__(
        self,
        folder: Path | None,
        cap_bytes: int,
        chains: Chains,
        on_damage: Callable[[str], None] = lambda reason: None,
        settings: DiskSettings | None = None,
    ) -> None:
        self.settings = settings or DiskSettings()
        self.cap_bytes = cap_bytes
        self.chains = chains
        self.epoch: bytes | None = None
        # Told after the tier went on or off
        self.on_changed: Callable[[], None] = lambda: None
        # Told of an address whose chain became, or is no longer, whole over RAM and disk
        self.on_residency: Callable[[bytes], None] = lambda address: None
        self._path = folder
        self._namespace: bytes | None = None
        self._payload_bytes = 0
        self._opened: bytes | None = None
        self._health = Health(self.settings.max_late_reads)
        self._threads = DiskThreads(self.settings.num_readers)
        self._folder = SegmentFolder(folder or Path())
        self.index = DiskIndex(chains)
        self._shares: dict[int, float] = {}
        self._reader = SegmentReader(
            self._folder, self.index, self._threads, self.settings, self._health, on_damage, self._gone
        )
        self._writer = SegmentWriter(self._folder, self.index, self._threads, self.settings, on_damage)
        self._writer.cap_bytes = cap_bytes
        self._gone_segments: set[Segment] = set()
        self._writing = asyncio.Lock()
        self._stores: set[asyncio.Task[list[bool]]] = set()
        self._wake = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._told_reason = self.off_reason
        chains.on_rooted = self._rooted

    @property
    def off_reason(self) -> str:
        """Why the tier is off; empty while it is on."""
        if not self.is_configured:
            return NOT_CONFIGURED
        if self._health.off_reason:
            return self._health.off_reason
        if self._namespace is None:
            return NO_NAMESPACE
        if segment_bytes(self.cap_bytes, self._payload_bytes) is None:
            return f"{self.cap_bytes} bytes of disk are too few for blocks of {self._payload_bytes}"
        return "" if self._opened == self._namespace else READING_INDEX

    @property
    def is_configured(self) -> bool:
        """Whether there should be a disk tier."""
        return self._path is not None and self.cap_bytes > 0

    @property
    def used_bytes(self) -> int:
        """What the folder takes at most, everything included."""
        return self.index.used_bytes

    @property
    def num_capacity_records(self) -> int:
        """About how many records of the engine's blocks fit."""
        return self.cap_bytes // record_bytes(self._payload_bytes) if self._payload_bytes else 0

    @property
    def num_moved(self) -> int:
        """Records written again because they were worth more than their segment."""
        return self._writer.num_moved

    def enabled(self) -> bool:
        """Whether calls reach anything."""
        return not self.off_reason

    def start(self) -> None:
        """Begin to look after the tier."""
        if self._path is not None:
            self._keeping = asyncio.create_task(self._keep() if self.cap_bytes else self._empty())

    def set_namespace(self, namespace: bytes, payload_bytes: int) -> None:
        """Hold records of this namespace from now on; those of others are garbage that goes by whole segments."""
        if (namespace[:16], payload_bytes) != (self._namespace, self._payload_bytes):
            self._namespace, self._payload_bytes = namespace[:16], payload_bytes
            self._opened = None
            self._look()
            self._wake.set()

    def set_shares(self, shares: Mapping[int, float]) -> None:
        """Cap what each tenant tag may hold, as a share of the tier; tags that are not named have no cap."""
        self._shares = dict(shares)
        self.index.set_limits({tag: int(share * self.cap_bytes) for tag, share in shares.items()})

    def has(self, address: bytes) -> bool:
        """Whether a record of `address` can be read."""
        return self.enabled() and self.index.get(address) is not None

    def forget(self, address: bytes) -> None:
        """Have no record of `address` any more; its bytes go with their segment."""
        entry = self.index.get(address)
        if entry is not None:
            self.index.remove(entry)

    def is_rooted(self, address: bytes) -> bool:
        """Whether the chain of `address` is whole over RAM and a disk that is on."""
        return self.enabled() and self.chains.is_rooted(address)

    async def probe(self, addresses: Sequence[bytes]) -> list[bool]:
        """Say which records exist; no use of them."""
        return [self.has(address) for address in addresses]

    def touch(self, address: bytes) -> None:
        """Count a use of `address` and its chain."""
        self.index.touch(address)

    async def fetch(
        self,
        addresses: Sequence[bytes],
        destinations: Sequence[memoryview],
        on_ready: Callable[[int, RecordHeader], None],
        on_released: Callable[[int], None] = lambda number: None,
    ) -> None:
        """Read payloads straight into `destinations` (aligned slots, else over a detour) and verify them.

        `on_ready(i, header)` comes when one has landed; what never does is a miss. `on_released(i)` comes once for
        each, possibly after this has returned: until then a thread may write to the destination.
        """
        if not self.enabled():
            for number in range(len(addresses)):
                on_released(number)
            return
        await self._reader.fetch(addresses, Fetch(destinations, on_ready, on_released))
        self._look()

    def hot_elsewhere(self) -> list[Entry]:
        """Return the hot records that RAM does not hold, hottest first."""
        hot = self.index.hot(MAX_HOT) if self.enabled() else []
        return [entry for entry in hot if not entry.link.tiers & RAM]

    async def store(self, header: RecordHeader, payload: memoryview) -> bool:
        """Write one record; True when it is there."""
        return (await self.store_all([NewRecord(header, payload)]))[0]

    async def store_all(
        self, records: Sequence[NewRecord], on_released: Callable[[], None] = lambda: None
    ) -> list[bool]:
        """Write records and say which are there (now, or were already).

        `on_released` comes once, when no thread reads the payloads any more; this may return before, or be cancelled.
        """
        storing = asyncio.create_task(self._store(records, on_released))
        self._stores.add(storing)
        storing.add_done_callback(self._stores.discard)
        return await asyncio.shield(storing)

    def seconds_per_byte(self) -> float:
        """Measured pace of reads."""
        return self._reader.pace.seconds_per_byte

    def latency_seconds(self) -> float:
        """Measured wait before a read begins, and what is queued now."""
        pace = self._reader.pace
        return pace.latency_seconds + pace.queued_bytes * pace.seconds_per_byte / self.settings.num_readers

    async def idle(self, timeout_seconds: float) -> bool:
        """Wait until no thread writes to memory of others; False when that takes too long."""
        return await self._threads.untouched(timeout_seconds)

    async def close(self) -> None:
        """Close the open segment within bounds and let go of the folder."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        self._namespace = None
        await asyncio.gather(*self._stores, return_exceptions=True)
        if not self._health.off_reason:
            with contextlib.suppress(OSError):  # the next life trims it
                await self._writer.close()
        if await self._threads.idle(0.0 if self._health.off_reason else self.settings.read_seconds):
            self._folder.release()
        self._threads.close()

    def check_integrity(self) -> None:
        """Assert that index and chains agree and the cap holds."""
        self.chains.check_integrity()
        self.index.check_integrity()
        if self._opened is not None:
            assert self.used_bytes <= self.cap_bytes, "the cap is exceeded"

    async def _store(self, records: Sequence[NewRecord], on_released: Callable[[], None]) -> list[bool]:
        is_stored = [False] * len(records)
        is_late = False
        try:
            if self.enabled():  # else nobody waits for a disk that is being tried
                async with self._writing:
                    await self._store_new(records, is_stored)
        except GoneError as error:
            _log.warning("the disk tier's files are looked for: %s", error)
            self._wake.set()
        except OSError as error:
            is_late = isinstance(error, LateError)
            self._health.write_failed(error)
            self._look()
        if is_late:
            self._threads.after_writes(on_released)
        else:
            on_released()
        return is_stored

    async def _store_new(self, records: Sequence[NewRecord], is_stored: list[bool]) -> None:
        if not self.enabled():
            return
        new: list[int] = []
        for number, record in enumerate(records):
            is_stored[number] = self.index.get(record.header.address) is not None
            fits = record.header.namespace == self._namespace and self.index.make_tenant_room(
                record.header.tenant_tag, record_bytes(record.header.payload_bytes)
            )
            if fits and not is_stored[number]:
                new.append(number)
        results = [False] * len(new)
        try:
            await self._writer.append([records[number] for number in new], results)
        finally:
            for number, result in zip(new, results, strict=True):
                is_stored[number] = result
            for tag in {records[number].header.tenant_tag for number in new}:
                self.index.make_tenant_room(tag, 0)

    async def _keep(self) -> None:
        """Open the folder for a new namespace, try a disk that is off until it works, and miss what is gone."""
        back_off = BackOff(self.settings.first_probe_seconds, self.settings.max_probe_seconds)
        while True:
            if not self._health.off_reason:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.settings.check_seconds):
                        await self._wake.wait()
                self._wake.clear()
            if self._health.off_reason:
                await asyncio.sleep(back_off.next_seconds(time.monotonic()))
            try:
                await self._mend()
            except OSError as error:
                self._health.write_failed(error)
            except Exception:  # noqa: BLE001 - the task's outermost loop: what fails once is tried again
                _log.exception("looking after the disk tier failed")
            self._look()

    async def _empty(self) -> None:
        """Leave nothing of earlier lives behind: there is room for nothing."""
        try:
            await result_of(self._threads.write(remove_all, self._folder), "emptying", self.settings.write_seconds)
        except OSError as error:
            _log.warning("the disk tier's folder is not emptied: %s", error)

    async def _mend(self) -> None:
        """Make the tier work again if it does not.

        Raises:
            OSError: it cannot yet.
        """
        if self._opened is not None:
            async with self._writing:
                await self._check()
        if self._health.off_reason and self._opened is not None:
            is_large = self._health.is_full and self._writer.has_spare_room
            size = self._writer.segment_bytes if is_large else ALIGNMENT
            await result_of(self._threads.write(self._folder.probe, size), "a probe", self.settings.read_seconds)
            self._health.recovered()
        if self._namespace is not None and self._opened != self._namespace:
            async with self._writing:
                await self._open()
            self._health.recovered()

    async def _check(self) -> None:
        """Forget what somebody else has taken away: single segments, or the whole folder, which is then opened anew.

        Raises:
            OSError: nobody can tell.
        """
        listing = self._threads.write(self._folder.present)  # behind whatever creates and removes
        present = await result_of(listing, "listing the folder", self.settings.write_seconds)
        if present is None:
            _log.warning("the disk tier's folder was replaced and is opened anew")
            self._opened = None
            self._look()
            return
        missing = [segment for segment in self.index.segments.values() if segment.sequence not in present]
        if missing:
            _log.warning("segments of the disk tier were removed %s", fields(segments=len(missing)))
        for segment in {*missing, *self._gone_segments}:
            await self._writer.let_go(segment)
            self._gone_segments.discard(segment)

    def _gone(self, segment: Segment) -> None:
        """Forget the records of a segment that is not what it was; `_check` does the rest."""
        for entry in list(segment.entries):  # none if we have evicted it ourselves
            self.index.remove(entry)
            self._gone_segments.add(segment)
        self._wake.set()

    async def _open(self) -> None:
        namespace, payload_bytes = self._namespace, self._payload_bytes
        assert namespace is not None, "a namespace is never taken away while we keep the tier"
        self._opened = None
        await self._writer.close()
        self._gone_segments.clear()
        self.index.begin(self.cap_bytes / record_bytes(payload_bytes) / 2)
        content = await load_index(self._folder, self._threads, self.index, namespace, payload_bytes)
        self.epoch = content.epoch
        self._writer.next_sequence = content.next_sequence
        self._writer.segment_bytes = segment_bytes(self.cap_bytes, payload_bytes) or 0
        await self._writer.shrink()
        self.set_shares(self._shares)
        self._opened = namespace
        _log.info(
            "disk tier on %s",
            fields(records=len(self.index), segments=len(self.index.segments), direct=self._folder.is_direct),
        )

    def _look(self) -> None:
        """Tell of a change, and see to it that what is off is tried again."""
        reason = self.off_reason
        if reason != self._told_reason:
            self._told_reason = reason
            if self._health.off_reason:
                _log.warning("disk tier off: %s", reason)
            self.on_changed()
        if self._health.off_reason:
            self._wake.set()

    def _rooted(self, link: Link) -> None:
        self.index.rooted(link)
        self.on_residency(link.address)
