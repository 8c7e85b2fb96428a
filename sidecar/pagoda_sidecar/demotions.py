"""Demotions: blocks on their way from RAM to disk, ahead of their eviction.

    a chain was parked ─────────────────────────► queue, bounded ──┐
    RAM runs full: what eviction would take next ──────────────────┼──► verify, write ──► `is_on_disk`
    nothing happened for a while: the same, in advance ────────────┘

Eviction never waits for the disk: a victim that was not yet written is lost, and counted. Slots being written are
referenced and hashed first: a damaged block must not spread.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Sequence

from pagoda_protocol.records import RecordError
from pagoda_sidecar.arena.slots.block import Block
from pagoda_sidecar.arena.tier import RamTier
from pagoda_sidecar.counters import Counters
from pagoda_sidecar.disk.folder import NewRecord
from pagoda_sidecar.disk.tier import DiskTier
from pagoda_sidecar.verifier import Verifier

_log = logging.getLogger(__name__)

BATCH_BLOCKS = 16
BATCH_BYTES = 4 * 2**20
MAX_QUEUED = 4096
# The share of RAM that is kept on disk ahead of eviction, and of the disk that this may take
AHEAD_SHARE = 1 / 4
DISK_SHARE = 1 / 4
# Without a change in RAM for so long the disk has time for more than what is due
QUIET_SECONDS = 2.0
# How long at least after a look that found nothing: many blocks come at once
PACE_SECONDS = 0.02
RETRY_SECONDS = 0.5


class Demoter:
    """See the head of this file. `stop` must have returned before a tier's arena is let go of."""

    def __init__(self, disk: DiskTier, verifier: Verifier, counters: Counters) -> None:
        self._disk = disk
        self._verifier = verifier
        self._counters = counters
        self._parked: dict[Block, None] = {}  # ordered, and each block once
        self._victims: list[Block] = []  # next one last
        self._has_changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, tier: RamTier) -> None:
        """Begin to look after the victims of `tier`."""
        assert self._task is None, "one RAM tier at a time"
        self._task = asyncio.create_task(self._run(tier))

    async def stop(self) -> None:
        """Stop; a write under way goes on, and lets go of its slots when it has ended (see `DiskTier.idle`)."""
        task, self._task = self._task, None
        self._parked.clear()
        self._victims.clear()
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def nudge(self) -> None:
        """RAM has changed."""
        self._has_changed.set()

    def parked(self, tier: RamTier, address: bytes) -> None:
        """Write the chain of `address` soon, from its front: its session is idle and will be back."""
        block = tier.index.sealed(address)
        if block is None or not self._disk.enabled():
            return
        for link in reversed(list(tier.index.chain(block))):
            if link.is_sealed and not self._disk.has(link.address):
                if len(self._parked) >= MAX_QUEUED:
                    self._counters.demotions.add(1, outcome="queue_full")
                    continue
                self._parked[link] = None
        self._has_changed.set()

    async def _run(self, tier: RamTier) -> None:
        while True:
            try:
                await self._work(tier)
            except Exception:  # noqa: BLE001 - the task's outermost loop: what fails once is tried again
                _log.exception("a demotion failed")
                await asyncio.sleep(RETRY_SECONDS)

    async def _work(self, tier: RamTier) -> None:
        """Write one batch, or wait for something to write."""
        batch = self._next(tier)
        if not batch:
            self._look_for_victims(tier, is_quiet=False)
            batch = self._next(tier)
        if batch:
            if not await self._write(tier, batch):
                await asyncio.sleep(RETRY_SECONDS)
            return
        await asyncio.sleep(PACE_SECONDS)
        is_quiet = False
        if not self._has_changed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(QUIET_SECONDS):
                    await self._has_changed.wait()
            is_quiet = not self._has_changed.is_set()
        self._has_changed.clear()
        if is_quiet:
            self._look_for_victims(tier, is_quiet=True)

    def _next(self, tier: RamTier) -> list[Block]:
        """Take the next blocks to write: parked ones first."""
        room = max(1, min(BATCH_BLOCKS, BATCH_BYTES // tier.arena.geometry.payload_bytes))
        batch: list[Block] = []
        while self._parked and len(batch) < room:
            block = next(iter(self._parked))
            del self._parked[block]
            batch.append(block)
        while self._victims and len(batch) < room:
            batch.append(self._victims.pop())
        batch = [block for block in batch if _is_there(block) and not self._disk.has(block.address)]
        return batch if self._disk.enabled() else []

    def _look_for_victims(self, tier: RamTier, is_quiet: bool) -> None:
        if not self._disk.enabled():
            return
        num_slots = tier.index.num_slots
        affordable = max(1, int(self._disk.num_capacity_records * DISK_SHARE))
        ahead = min(affordable, max(2, int(num_slots * AHEAD_SHARE)))
        num_wanted = min(affordable, num_slots) if is_quiet else ahead - tier.index.num_free
        if num_wanted <= 0:
            return
        victims = [block for block in tier.index.next_victims(num_wanted) if not self._disk.has(block.address)]
        # A chain is named from its end: what is due first goes first, but the front of a batch before its end
        batches = [victims[start : start + BATCH_BLOCKS] for start in range(0, len(victims), BATCH_BLOCKS)]
        self._victims = list(itertools.chain.from_iterable(reversed(batches)))

    async def _write(self, tier: RamTier, batch: Sequence[Block]) -> bool:
        """Write `batch`; False when nothing of it was taken."""
        sound = await self._verifier.check(tier, batch)
        blocks = [block for block, is_sound in zip(batch, sound, strict=True) if is_sound and _is_there(block)]
        records: list[NewRecord] = []
        written: list[Block] = []
        for block in blocks:
            try:
                header = tier.header(block)
            except RecordError:
                continue  # damaged since it was hashed; whoever reads it next will drop it
            records.append(NewRecord(header, tier.arena.slot(block.slot), block.num_uses))
            written.append(block)
            tier.index.reference(block)
        if not written:
            return True

        def release() -> None:
            for block in written:
                tier.index.unreference(block)

        is_stored = await self._disk.store_all(records, release)
        self._counters.demotions.add(sum(is_stored), outcome="stored")
        self._counters.demotions.add(len(is_stored) - sum(is_stored), outcome="refused")
        return any(is_stored)


def _is_there(block: Block) -> bool:
    return block.is_named and block.is_sealed
