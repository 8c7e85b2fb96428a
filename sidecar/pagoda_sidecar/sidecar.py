"""The sidecar's state and what changes it: an engine comes or goes, the arena comes or goes.

    ArenaKeeper ──arena──► RamTier (of the attached engine's namespace) ◄── Loads, Pusher, Verifier
                               │ residency                                      ├──► PoolTier
    Attachment ──device, rows──► Hints ──► routers                   Demoter ───┴──► DiskTier

Everything here belongs to the control loop. A tier is let go of only after loads, pushes and hashes have ended.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from pagoda_protocol.tier import ARENA_NAME
from pagoda_protocol.tier import tier_pb2 as pb
from pagoda_runtime.logs import fields
from pagoda_sidecar.arena.slots.block import Block
from pagoda_sidecar.arena.tier import RamTier
from pagoda_sidecar.arena_keeper import ArenaKeeper
from pagoda_sidecar.attachment import Attachment
from pagoda_sidecar.counters import Counters
from pagoda_sidecar.demotions import Demoter
from pagoda_sidecar.digest_table import DigestTable
from pagoda_sidecar.disk.chains import Chains
from pagoda_sidecar.disk.tier import DiskTier
from pagoda_sidecar.hints import Hints
from pagoda_sidecar.loads import Loads
from pagoda_sidecar.pool_tier import PoolTier
from pagoda_sidecar.pushes import Pusher
from pagoda_sidecar.residency import Residency
from pagoda_sidecar.tenant_shares import Shares
from pagoda_sidecar.verifier import Verifier

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

FINISH_SECONDS = 5.0


class LiveEngineError(Exception):
    """Another engine is attached and alive."""


class LockNotHeldError(Exception):
    """The engine does not hold `engine.lock`, so nothing would keep its slots safe."""


class Sidecar:
    """See the head of this file. `off_reason`, when not empty, keeps all tiers off (bad configuration)."""

    def __init__(
        self, volume: Path, ram_bytes: int, pool: PoolTier, counters: Counters, disk: DiskTier | None = None
    ) -> None:
        self.tier: RamTier | None = None
        self.attachment: Attachment | None = None
        self.off_reason = ""
        self.pool = pool
        self.disk = disk if disk is not None else DiskTier(None, 0, Chains())
        self.counters = counters
        self.verifier = Verifier(counters)
        self.pusher = Pusher(pool, self.verifier)
        self.loads = Loads(pool, self.disk, self.verifier, self.pusher)
        self.demoter = Demoter(self.disk, self.verifier, counters)
        self.table = DigestTable(time.time)
        self.residency = Residency(self.disk, counters)
        self.hints = Hints(self.table, self.residency.is_in_ram, self.residency.is_below)
        self.residency.on_change = self.hints.mark_address
        self.residency.on_ram = self.demoter.nudge
        self.disk.on_changed = self._disk_changed
        self.keeper = ArenaKeeper(volume, ram_bytes)
        self.keeper.on_ready = self._arena_is_ready
        self.keeper.on_failed = self.tell_engine
        self.keeper.on_progress = self.tell_engine
        self._switching = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._num_evictions = self._num_share_evictions = 0
        self._is_closing = False
        self._num_disk_evictions = self._num_disk_share_evictions = 0
        self._shares = Shares()
        self._num_moved = 0
        self._pool_changes = pool.num_upheavals

    async def start(self) -> None:
        """Open the arena or begin to make one."""
        self.disk.start()
        await self.keeper.start()

    async def attach(self, request: pb.AttachRequest) -> Attachment:
        """Make this engine the attached one.

        Raises:
            LiveEngineError: another one is attached and alive.
            LockNotHeldError: it must take the lock first.
        """
        former = self.attachment
        if former is not None and former.request.process_id != request.process_id:
            raise LiveEngineError("another engine is attached and alive")
        if await asyncio.to_thread(self.keeper.is_lock_free):
            raise LockNotHeldError("take an exclusive OFD lock on engine.lock before attaching")
        if former is not self.attachment:
            raise LiveEngineError("another engine attached at the same time")
        if former is not None:
            self.detach(former)
        attachment = self.attachment = Attachment(request)
        self.hints.engine_attached(attachment.head, attachment.id.hex())
        try:
            await self._fit_tier()
        except BaseException:  # the engine went away meanwhile
            self.detach(attachment)
            raise
        _log.info(
            "engine attached %s",
            fields(ram_off=self.ram_off_reason, pool_off=self.pool_off_reason, disk_off=self.disk_off_reason),
        )
        return attachment

    def detach(self, attachment: Attachment) -> None:
        """The engine's stream ended: it is dead or leaves."""
        if attachment.is_ended:
            return
        attachment.is_ended = True
        attachment.changed.set()
        self.attachment = None
        if self.tier is not None:
            self.tier.lapse(attachment.id)
            if not attachment.has_handed_over:
                self.pusher.drain(self.tier)
        self.hints.engine_detached()
        _log.info("engine detached")

    def detach_all(self) -> None:
        """End the attached engine's stream, if there is one: we leave."""
        if self.attachment is not None:
            self.detach(self.attachment)

    def describe(self, attachment: Attachment) -> pb.AttachEvent:
        """Return what the attached engine must know now."""
        event = pb.AttachEvent(
            attachment=attachment.id,
            ram_off_reason=self.ram_off_reason,
            pool_off_reason=self.pool_off_reason,
            disk_off_reason=self.disk_off_reason,
            tiers=self.configured,
            pool_changes=self.pool.num_upheavals,
        )
        if self.tier is not None and not self.ram_off_reason:
            arena = self.tier.arena
            event.arena_epoch = arena.epoch
            event.arena_path = ARENA_NAME
            event.slot_bytes = arena.geometry.slot_bytes
        return event

    @property
    def configured(self) -> list[pb.TierName.ValueType]:
        """The tiers that there should be, whether they are on or off."""
        wanted = {
            pb.TIER_NAME_RAM: self.keeper.is_configured,
            pb.TIER_NAME_DISK: self.disk.is_configured,
            pb.TIER_NAME_POOL: self.pool.is_configured,
        }
        return [name for name, is_wanted in wanted.items() if is_wanted]

    @property
    def ram_off_reason(self) -> str:
        """Why the RAM tier is off; empty while it is on."""
        if self.off_reason or self.keeper.off_reason:
            return self.off_reason or self.keeper.off_reason
        return "" if self.tier is not None else "no engine has announced its blocks"

    @property
    def pool_off_reason(self) -> str:
        """Why the pool is off; empty while it is on."""
        return self.off_reason or self.pool.off_reason

    @property
    def disk_off_reason(self) -> str:
        """Why the disk tier is off; empty while it is on."""
        return self.off_reason or self.disk.off_reason

    def set_off_reason(self, reason: str) -> None:
        """Switch all tiers off with a reason, or on again with an empty one."""
        self.off_reason = reason
        self.spawn(self._fit_and_tell())

    def set_shares(self, shares: Shares) -> None:
        """Cap what each tenant's blocks may hold of each tier, now and in tiers to come."""
        self._shares = shares
        self.disk.set_shares(shares.disk)
        if self.tier is not None:
            self.tier.set_shares(shares.ram)

    def count_refusal(self, call: str, reason: str) -> None:
        """Count a call that is answered with an error."""
        self.counters.calls_refused.add(1, call=call, reason=reason)

    def follow_pool(self) -> None:
        """Tell the attached engine when the pool's nodes are others, or one of them came back."""
        former, self._pool_changes = self._pool_changes, self.pool.num_upheavals
        if former != self._pool_changes:
            self.tell_engine()

    @contextlib.asynccontextmanager
    async def tier_held(self) -> AsyncIterator[RamTier | None]:
        """Keep the RAM tier, if there is one, from being let go of while the context is open: for moments."""
        async with self._switching:
            yield self.tier

    def tell_engine(self) -> None:
        """Send the attached engine a fresh description."""
        if self.attachment is not None:
            self.attachment.changed.set()

    def update_gauges(self) -> None:
        """Bring gauges up to date; cheap."""
        counters, tier = self.counters, self.tier
        counters.attached.set(self.attachment is not None)
        counters.digest_rows.set(self.hints.num_published)
        counters.arena_allocated.set(self.keeper.allocated_ratio)
        self._show_disk()
        if tier is None:
            self._show_no_tier()
            return
        counters.bytes.set(tier.arena.geometry.file_bytes, tier="ram")
        counters.blocks.set(tier.index.num_sealed, tier="ram", state="sealed")
        counters.blocks.set(tier.index.num_free, tier="ram", state="free")
        counters.blocks.set(tier.index.parking.num_blocks, tier="ram", state="parked")
        lapsed = len(tier.leases.lapsed)
        counters.leases.set(len(tier.leases) - lapsed)
        counters.quarantined.set(tier.leases.num_quarantined_slots)
        self._count_evictions(tier)

    def _count_evictions(self, tier: RamTier) -> None:
        self.counters.evictions.add(tier.index.num_evictions - self._num_evictions, tier="ram")
        self._num_evictions = tier.index.num_evictions
        self.counters.share_evictions.add(tier.index.num_share_evictions - self._num_share_evictions, tier="ram")
        self._num_share_evictions = tier.index.num_share_evictions

    def _show_disk(self) -> None:
        counters, disk = self.counters, self.disk
        if disk.enabled():
            counters.bytes.set(disk.used_bytes, tier="disk")
            counters.blocks.set(len(disk.index), tier="disk", state="sealed")
        else:
            counters.bytes.remove(tier="disk")
            counters.blocks.remove(tier="disk", state="sealed")
        counters.evictions.add(disk.index.num_evictions - self._num_disk_evictions, tier="disk")
        self._num_disk_evictions = disk.index.num_evictions
        num_more = disk.index.num_share_evictions - self._num_disk_share_evictions
        counters.share_evictions.add(num_more, tier="disk")
        self._num_disk_share_evictions = disk.index.num_share_evictions
        counters.moves.add(disk.num_moved - self._num_moved)
        self._num_moved = disk.num_moved

    def _show_no_tier(self) -> None:
        self.counters.leases.set(0)
        self.counters.quarantined.set(0)
        self.counters.bytes.remove(tier="ram")
        for state in ("sealed", "free", "parked"):
            self.counters.blocks.remove(tier="ram", state=state)

    def spawn(self, work: Coroutine[Any, Any, _Result]) -> "asyncio.Task[_Result]":
        """Run `work` to its end, whoever waits for it; `close` waits too."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def recheck(self, tier: RamTier, blocks: list[Block]) -> None:
        """Hash `blocks` again in the background, because an engine doubts them."""
        self.spawn(self._recheck(tier, blocks))

    async def close(self) -> None:
        """Finish what is being pushed, within bounds, and let go of everything; the arena's file stays."""
        self._is_closing = True
        self.hints.close()
        self.detach_all()
        await self.pusher.finish(FINISH_SECONDS)
        async with self._switching:
            await self._let_go()
            self.table.use_storage(None)
            await self.keeper.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.disk.close()
        await self.pool.close()
        self.verifier.close()

    async def _fit_tier(self) -> None:
        """Make the RAM tier be the attached engine's, or be off with a reason."""
        async with self._switching:
            attachment = self.attachment
            if attachment is None:
                return
            request = attachment.request
            if self.off_reason:
                await self._let_go()
                return
            if self.tier is not None and self.tier.namespace != request.namespace[: len(self.tier.namespace)]:
                await self._let_go()
            if not self.keeper.fits(request.payload_bytes):
                await self._let_go()
                self.table.use_storage(None)
            self.pool.set_namespace(request.namespace)
            if self.keeper.prepare(request.payload_bytes) and self.tier is None:
                await self._build_tier(request)
            if self.tier is not None:
                self.tier.attached()

    async def _build_tier(self, request: pb.AttachRequest) -> None:
        arena = self.keeper.arena
        assert arena is not None, "a prepared keeper has an arena"
        tier = await asyncio.to_thread(
            RamTier, arena, request.namespace, request.codec, time.monotonic, self.keeper.is_lock_free
        )
        await asyncio.to_thread(tier.warm, self.table.heats())
        if tier.num_damaged_headers:
            self.counters.integrity_failures.add(tier.num_damaged_headers, tier="ram", reason="header")
        self.residency.follow(tier.index)
        tier.set_shares(self._shares.ram)
        tier.on_parked = lambda address: self.demoter.parked(tier, address)
        self.tier, self._num_evictions, self._num_share_evictions = tier, 0, 0
        self.disk.set_namespace(request.namespace, request.payload_bytes)
        self.demoter.start(tier)
        self.hints.set_ram_epoch(arena.epoch.hex())

    async def _let_go(self) -> None:
        """Stop all that touches the arena's slots."""
        await self.loads.cancel_all()
        await self.pusher.cancel()
        await self.demoter.stop()
        if self.tier is not None:
            if not await self.disk.idle(FINISH_SECONDS):
                self._discard_arena()
            self._count_evictions(self.tier)
            self.tier = None
            self.residency.unfollow()
            self.hints.set_ram_epoch(None)

    def _discard_arena(self) -> None:
        """Give the arena up: a thread that hangs in a read may still write to a slot."""
        if not self._is_closing:  # then nobody will use it before that thread is gone
            self.table.use_storage(None)
            self.keeper.discard()

    def _arena_is_ready(self) -> None:
        arena = self.keeper.arena
        assert arena is not None, "the keeper has just said so"
        self.table.use_storage(arena.digest_rows)
        self.spawn(self._fit_and_tell())

    async def _recheck(self, tier: RamTier, blocks: list[Block]) -> None:
        async with self.tier_held() as held:
            if tier is held:
                await self.verifier.check(tier, blocks)

    async def _fit_and_tell(self) -> None:
        await self._fit_tier()
        self.tell_engine()

    def _disk_changed(self) -> None:
        epoch = self.disk.epoch
        self.hints.set_disk_epoch(epoch.hex() if self.disk.enabled() and epoch is not None else None)
        self.demoter.nudge()
        self.tell_engine()
