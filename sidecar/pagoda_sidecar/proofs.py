"""An engine proves its tiers with a block of its own: stored in RAM, then placed in one tier after the other.

    stored ──► RAM ──Place(disk)──► disk alone ──Load──► RAM ──Place(pool)──► pool alone ──Load──► RAM ──► nowhere

Each time the engine loads the block back on the ordinary way, its bytes have been there and nowhere else. The record
says what it is (`records.PROOF`): a restart does not take it up from disk, memcached forgets it by itself.
"""

import asyncio
from dataclasses import replace

from pagoda_protocol.records import PROOF, RecordError
from pagoda_protocol.tier import tier_pb2 as pb
from pagoda_sidecar.arena.slots.block import Block
from pagoda_sidecar.arena.tier import RamTier
from pagoda_sidecar.disk.folder import NewRecord
from pagoda_sidecar.pool import STORED
from pagoda_sidecar.sidecar import Sidecar


async def place(sidecar: Sidecar, address: bytes, name: pb.TierName.ValueType, budget_seconds: float) -> str:
    """Keep the block in tier `name` alone (unspecified: in none); return why that could not be done, if so.

    Where it was before it is then no longer, whatever came of it.
    """
    async with sidecar.tier_held() as tier:
        block = None if tier is None else tier.index.sealed(address)
        if tier is None or block is None:
            sidecar.disk.forget(address)
            return "" if name == pb.TIER_NAME_UNSPECIFIED else "the block is not in RAM"
        try:
            async with asyncio.timeout(budget_seconds):
                return await _put(sidecar, tier, block, name)
        except TimeoutError:
            return f"no answer in {budget_seconds:g} s"
        except RecordError as error:
            return f"the record in RAM is damaged: {error.reason}"
        finally:
            tier.drop(block)
            if name != pb.TIER_NAME_DISK:
                sidecar.disk.forget(address)


async def _put(sidecar: Sidecar, tier: RamTier, block: Block, name: pb.TierName.ValueType) -> str:
    if name == pb.TIER_NAME_DISK:
        return await _to_disk(sidecar, tier, block)
    return await _to_pool(sidecar, tier, block) if name == pb.TIER_NAME_POOL else ""


async def _to_disk(sidecar: Sidecar, tier: RamTier, block: Block) -> str:
    header = replace(tier.header(block), flags=PROOF)
    tier.index.reference(block)  # for as long as a thread may read its slot
    record = NewRecord(header, tier.arena.slot(block.slot), 0)
    (is_stored,) = await sidecar.disk.store_all([record], lambda: tier.index.unreference(block))
    return "" if is_stored else sidecar.disk_off_reason or "not written"


async def _to_pool(sidecar: Sidecar, tier: RamTier, block: Block) -> str:
    header = replace(tier.header(block), flags=PROOF)
    tier.index.reference(block)
    try:
        (outcome,) = await sidecar.pool.store_all([(header, tier.arena.payload(block.slot))])
    finally:
        tier.index.unreference(block)
    return "" if outcome in STORED else f"not stored: {outcome}"
