"""Loads: what an engine asked for becomes ready block by block, out of RAM at once, off the disk and out of the pool
as it lands.

    grant (all slots, no I/O) ──► present blocks: verified if new to this life ──► ready(ram)
                             ├──► absent ones on disk: read into their slots ──► sealed ──► ready(disk)
                             │                          └──did not come──┐
                             ├──► the others: one fetch from the pool ◄──┘ ──► sealed ──► ready(pool) | missed
                             └──► those another load fetches already: awaited, never fetched twice

A job keeps its events, so that the same request sent again sees the same ones. A job that nobody follows any more is
cancelled; its slots stay leased until the engine settles.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import TypeAlias

from pagoda_protocol.records import RecordHeader
from pagoda_protocol.tier import tier_pb2 as pb
from pagoda_sidecar.arena.slots.block import Block
from pagoda_sidecar.arena.slots.grants import Grant, Holder, Run
from pagoda_sidecar.arena.tier import RamTier
from pagoda_sidecar.disk.tier import DiskTier
from pagoda_sidecar.pool_tier import PoolTier
from pagoda_sidecar.pushes import Pusher
from pagoda_sidecar.verifier import Verifier

_log = logging.getLogger(__name__)

VERIFY_BATCH = 16
MAX_REMEMBERED = 256

Position = tuple[int, Block]
# Where a block came from; None: it did not come
Landing: TypeAlias = "asyncio.Future[pb.TierName.ValueType | None]"


class LoadJob:
    """The events of one load, for as many readers as ask."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self._events: list[pb.LoadEvent] = []
        self._changed = asyncio.Event()
        self._is_done = False
        self._num_readers = 0

    def ready(self, position: int, block: Block, source: pb.TierName.ValueType) -> None:
        """Say that the block's bytes may be copied."""
        self._emit(
            pb.LoadEvent(
                ready=pb.LoadEvent.Ready(position=position, slot=block.slot, generation=block.generation, source=source)
            )
        )

    def missed(self, position: int, reason: str) -> None:
        """Say that the block will not come."""
        self._emit(pb.LoadEvent(missed=pb.LoadEvent.Missed(position=position, reason=reason)))

    def granted(self, lease_id: str, stop: int) -> None:
        """Say how far the grant goes."""
        self._emit(pb.LoadEvent(grant=pb.LoadEvent.Grant(lease_id=lease_id, stop=stop)))

    def done(self) -> None:
        """End the stream of every reader."""
        self._is_done = True
        self._changed.set()

    async def follow(self) -> AsyncGenerator[pb.LoadEvent, None]:
        """Yield all events, first to last; when the last reader leaves early the job is cancelled."""
        self._num_readers += 1
        try:
            position = 0
            while True:
                while position < len(self._events):
                    yield self._events[position]
                    position += 1
                if self._is_done:
                    return
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._num_readers -= 1
            if self._num_readers == 0 and self.task is not None:
                self.task.cancel()

    def _emit(self, event: pb.LoadEvent) -> None:
        self._events.append(event)
        self._changed.set()


@dataclass(frozen=True)
class _Work:
    """One granted load, split by how its blocks become ready. Lists are in the order asked for."""

    job: LoadJob
    tier: RamTier
    present: list[Position]
    reads: list[Position]  # from disk
    fetches: list[Position]  # from the pool
    joined: "list[tuple[int, Block, Landing | None]]"
    is_use: bool


class Loads:
    """All loads of a sidecar."""

    def __init__(self, pool: PoolTier, disk: DiskTier, verifier: Verifier, pusher: Pusher) -> None:
        self._pool = pool
        self._disk = disk
        self._verifier = verifier
        self._pusher = pusher
        self._running: dict[str, LoadJob] = {}
        self._ended: OrderedDict[str, LoadJob] = OrderedDict()  # the last of them, for requests sent again
        self._fetching: dict[Block, Landing] = {}

    def find(self, request_id: str) -> LoadJob | None:
        """Return the job of a request that was sent before."""
        return self._running.get(request_id) or self._ended.get(request_id)

    def start(
        self, tier: RamTier, request_id: str, holder: Holder, run: Run, is_back_first: bool, is_use: bool = True
    ) -> LoadJob:
        """Grant slots at once and begin to make blocks ready; a load that is no use of them changes no weight."""
        can_fetch = self._pool.enabled() or self._disk.enabled()
        grant = tier.grant(request_id, holder, self._reachable(tier, run), can_fetch)
        job = LoadJob()
        job.granted(request_id, grant.stop)
        work = self._split(job, tier, grant, is_back_first, is_use)
        for _, block in (*work.reads, *work.fetches):
            self._fetching[block] = asyncio.get_running_loop().create_future()
        job.task = asyncio.create_task(self._run(work))
        job.task.add_done_callback(lambda task: self._finish(request_id, work, task))
        self._running[request_id] = job
        return job

    def cancel(self, request_id: str) -> None:
        """Stop working for a request that was settled."""
        job = self._running.get(request_id)
        if job is not None and job.task is not None:
            job.task.cancel()

    async def cancel_all(self) -> None:
        """Stop everything; when this returns only the disk's threads may still write to a slot (`DiskTier.idle`)."""
        tasks = [job.task for job in self._running.values() if job.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._ended.clear()

    def _reachable(self, tier: RamTier, run: Run) -> Run:
        """Cut a run where a block can come from nowhere: without a pool that is known at once."""
        if self._pool.enabled() or not self._disk.enabled():
            return run
        for position in range(run.first, run.stop):
            address = run.chain[position]
            if tier.index.named(address) is None and not self._disk.has(address):
                return replace(run, stop=position)
        return run

    def _split(self, job: LoadJob, tier: RamTier, grant: Grant, is_back_first: bool, is_use: bool) -> _Work:
        blocks = list(reversed(grant.blocks)) if is_back_first else grant.blocks
        absent = {block for _, block in grant.fetches}
        present = [(position, block) for position, block in blocks if block.is_sealed]
        reads = [one for one in blocks if one[1] in absent and self._disk.has(one[1].address)]
        read = {block for _, block in reads}
        fetches = [one for one in blocks if one[1] in absent and one[1] not in read]
        joined = [
            (position, block, self._fetching.get(block))
            for position, block in blocks
            if not block.is_sealed and block not in absent
        ]
        return _Work(job, tier, present, reads, fetches, joined, is_use)

    async def _run(self, work: _Work) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._hand_out(work))
            if work.reads:
                tasks.create_task(self._read(work))
            if work.fetches:
                tasks.create_task(self._fetch(work, work.fetches))
            if work.joined:
                tasks.create_task(self._await_joined(work))

    async def _await_joined(self, work: _Work) -> None:
        """Tell of what another load fetches as it lands: an engine takes blocks in order, these may be its first."""
        for position, block, landing in work.joined:
            source = None if landing is None else await asyncio.shield(landing)
            if source is not None:
                work.job.ready(position, block, source)
            else:
                work.job.missed(position, "pending")

    def _finish(self, request_id: str, work: _Work, task: asyncio.Task[None]) -> None:
        """Clean up after a job, also after one that was cancelled before its first step."""
        self._ended[request_id] = self._running.pop(request_id)
        while len(self._ended) > MAX_REMEMBERED:
            self._ended.popitem(last=False)
        for _, block in (*work.reads, *work.fetches):
            self._give_up(work.tier, block)
        work.job.done()
        if not task.cancelled() and task.exception() is not None:
            _log.error("a load failed", exc_info=task.exception())

    async def _hand_out(self, work: _Work) -> None:
        """Tell of what lies in RAM; what this life has not hashed yet is hashed first."""
        hits: list[Block] = []
        for start in range(0, len(work.present), VERIFY_BATCH):
            batch = work.present[start : start + VERIFY_BATCH]
            doubtful = [block for _, block in batch if not block.is_verified]
            if doubtful:
                await self._verifier.check(work.tier, doubtful)
            for position, block in batch:
                if block.is_named and block.is_verified:
                    work.job.ready(position, block, pb.TIER_NAME_RAM)
                    hits.append(block)
                else:
                    work.job.missed(position, "integrity")
        self._hit(work, hits)

    async def _read(self, work: _Work) -> None:
        """Read from disk; what does not come, and whose slot no thread holds, is asked of the pool."""
        waiting = dict(enumerate(work.reads))
        held: set[int] = set(waiting)
        hits: list[Block] = []
        for _, block in work.reads:
            work.tier.index.reference(block)  # for as long as a thread may write to its slot

        def on_ready(number: int, header: RecordHeader) -> None:
            position, block = waiting.pop(number)
            if self._land(work, position, block, header, pb.TIER_NAME_DISK):
                hits.append(block)

        def on_released(number: int) -> None:
            held.discard(number)
            work.tier.index.unreference(work.reads[number][1])

        addresses = [block.address for _, block in work.reads]
        destinations = [work.tier.arena.slot(block.slot) for _, block in work.reads]
        await self._disk.fetch(addresses, destinations, on_ready, on_released)
        self._hit(work, hits)
        late = [waiting.pop(number) for number in list(waiting) if number in held]
        for position, block in late:
            self._give_up(work.tier, block)
            work.job.missed(position, "late")
        if waiting:
            await self._fetch(work, list(waiting.values()))

    async def _fetch(self, work: _Work, positions: list[Position]) -> None:
        waiting = dict(enumerate(positions))

        def on_ready(index: int, header: RecordHeader) -> None:
            position, block = waiting.pop(index)
            self._land(work, position, block, header, pb.TIER_NAME_POOL)

        if self._pool.enabled():
            addresses = [block.address for _, block in positions]
            destinations = [work.tier.arena.payload(block.slot) for _, block in positions]
            await self._pool.fetch(addresses, destinations, on_ready)
        for position, block in waiting.values():
            self._give_up(work.tier, block)
            work.job.missed(position, "miss")

    def _land(
        self, work: _Work, position: int, block: Block, header: RecordHeader, source: pb.TierName.ValueType
    ) -> bool:
        """Seal what has come and say so."""
        has_landed = work.tier.land(block, header)
        self._landed(block, source if has_landed else None)
        if has_landed:
            if source == pb.TIER_NAME_POOL:
                self._pusher.is_in_pool(block)
            work.job.ready(position, block, source)
        else:
            work.job.missed(position, "integrity")
        return has_landed

    def _hit(self, work: _Work, hits: list[Block]) -> None:
        """Count a use, once per request and run."""
        if hits and work.is_use:
            last = max(hits, key=lambda block: block.index)
            work.tier.index.use(last)
            self._disk.touch(last.address)
            self._pusher.loaded(work.tier, last)

    def _give_up(self, tier: RamTier, block: Block) -> None:
        if block in self._fetching:
            tier.fail(block)
            self._landed(block, None)

    def _landed(self, block: Block, source: pb.TierName.ValueType | None) -> None:
        self._fetching.pop(block).set_result(source)
