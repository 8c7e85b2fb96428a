"""Reading: records into slots, adjacent ones in one call, each verified before it is told of.

A fetch keeps a few groups in flight, in the order it was asked for. A group that does not come in time is missed with
all that follows it; its thread may still write where it was told to, so a destination is the caller's again only when
`on_released` says so.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from pagoda_protocol.records import RecordHeader
from pagoda_sidecar.disk.folder import GoneError, SegmentFolder, Wanted
from pagoda_sidecar.disk.health import Health, LateError
from pagoda_sidecar.disk.index import DiskIndex, Entry, Segment
from pagoda_sidecar.disk.settings import DiskSettings
from pagoda_sidecar.disk.threads import DiskThreads, result_of

_EARLIER = 0.8  # weight of what was measured before in each new average


@dataclass(frozen=True)
class Fetch:
    """What a fetch is about: where payloads go and who is told. Numbers are indexes into `destinations`."""

    destinations: Sequence[memoryview]
    on_ready: Callable[[int, RecordHeader], None]
    on_released: Callable[[int], None]


@dataclass(frozen=True)
class _Group:
    segment: Segment
    items: list[tuple[int, Entry]]  # in the order of the file

    @property
    def num_bytes(self) -> int:
        return sum(entry.num_bytes for _, entry in self.items)


class Pace:
    """What reads have cost lately."""

    def __init__(self) -> None:
        self.latency_seconds = 0.001
        self.seconds_per_byte = 1e-9
        self.queued_bytes = 0

    def measured(self, num_bytes: int, waited_seconds: float, read_seconds: float) -> None:
        """Take note of a group: how long it waited for a thread and how long that took."""
        pace = read_seconds / max(1, num_bytes)
        self.seconds_per_byte = _EARLIER * self.seconds_per_byte + (1 - _EARLIER) * pace
        self.latency_seconds = _EARLIER * self.latency_seconds + (1 - _EARLIER) * waited_seconds


class SegmentReader:
    """See the head of this file."""

    def __init__(
        self,
        folder: SegmentFolder,
        index: DiskIndex,
        threads: DiskThreads,
        settings: DiskSettings,
        health: Health,
        on_damage: Callable[[str], None],
        on_gone: Callable[[Segment], None],
    ) -> None:
        self.pace = Pace()
        self._folder = folder
        self._index = index
        self._threads = threads
        self._settings = settings
        self._health = health
        self._on_damage = on_damage
        self._on_gone = on_gone

    async def fetch(self, addresses: Sequence[bytes], fetch: Fetch) -> None:
        """Read what is there of `addresses`, in their order as far as threads allow."""
        groups = self._groups(addresses)
        grouped = {number for group in groups for number, _ in group.items}
        for number in range(len(addresses)):
            if number not in grouped:
                fetch.on_released(number)
        waiting = list(reversed(groups))
        for group in groups:
            group.segment.num_readers += 1
        is_late = False

        async def work() -> None:
            nonlocal is_late
            while waiting and not is_late and not self._health.off_reason:
                if not await self._read(waiting.pop(), fetch):
                    is_late = True

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(self._settings.num_readers, len(groups))):
                    tasks.create_task(work())
        finally:
            for group in waiting:
                self._release(group, fetch)

    def _groups(self, addresses: Sequence[bytes]) -> list[_Group]:
        """Gather records that lie side by side, upwards or downwards, up to the size of a group."""
        groups: list[_Group] = []
        seen: set[bytes] = set()
        for number, address in enumerate(addresses):
            entry = self._index.get(address)
            if entry is None or address in seen:
                continue
            seen.add(address)
            last = groups[-1] if groups else None
            if last is not None and last.segment is entry.segment and last.num_bytes < self._settings.group_bytes:
                (_, low), (_, high) = last.items[0], last.items[-1]
                if high.offset + high.num_bytes == entry.offset:
                    last.items.append((number, entry))
                    continue
                if entry.offset + entry.num_bytes == low.offset:
                    last.items.insert(0, (number, entry))
                    continue
            groups.append(_Group(entry.segment, [(number, entry)]))
        return groups

    async def _read(self, group: _Group, fetch: Fetch) -> bool:
        """Read one group; False when it is late."""
        wanted = [
            Wanted(entry.link.address, entry.offset, entry.payload_bytes, fetch.destinations[number])
            for number, entry in group.items
        ]
        times = [time.monotonic()] * 3
        reading = self._threads.read_into(_timed, times, self._folder.read, group.segment.sequence, wanted)
        self.pace.queued_bytes += group.num_bytes
        self._release_when_done(reading, group, fetch)
        try:
            results = await result_of(reading, "a read", self._settings.read_seconds)
        except LateError as error:
            self._health.read_failed(error)
            return False
        except GoneError:
            self._on_gone(group.segment)
            return True
        except OSError as error:
            self._health.read_failed(error)
            for _, entry in group.items:  # whatever is there cannot be had: say so from now on
                self._index.remove(entry)
            return True
        self._health.read_came()
        self.pace.measured(group.num_bytes, times[1] - times[0], times[2] - times[1])
        in_order = zip(group.items, results, strict=True)
        for (number, entry), result in sorted(in_order, key=lambda one: one[0][0]):
            if isinstance(result, RecordHeader):
                fetch.on_ready(number, result)
            elif entry.is_live:  # else its segment may be another one by now
                self._on_damage(result)
                self._index.remove(entry)
        return True

    def _release_when_done(self, reading: "Future[list[RecordHeader | str]]", group: _Group, fetch: Fetch) -> None:
        loop = asyncio.get_running_loop()

        def release() -> None:
            self.pace.queued_bytes -= group.num_bytes
            self._release(group, fetch)

        def done(_: "Future[list[RecordHeader | str]]") -> None:
            with contextlib.suppress(RuntimeError):  # the loop is gone, and the slots with it
                loop.call_soon_threadsafe(release)

        reading.add_done_callback(done)

    def _release(self, group: _Group, fetch: Fetch) -> None:
        group.segment.num_readers -= 1
        for number, _ in group.items:
            fetch.on_released(number)


def _timed(
    times: list[float],
    work: Callable[[int, Sequence[Wanted]], list[RecordHeader | str]],
    sequence: int,
    wanted: Sequence[Wanted],
) -> list[RecordHeader | str]:
    times[1] = time.monotonic()
    results = work(sequence, wanted)
    times[2] = time.monotonic()
    return results
