"""Lookup: the longest run present, tier by tier. Existence only: no lease, no recency."""

import asyncio

from pagoda_protocol.tier import tier_pb2 as pb
from pagoda_sidecar.arena.tier import RamTier
from pagoda_sidecar.pool_tier import PoolTier
from pagoda_sidecar.sidecar import Sidecar

# What copying out of the arena costs an engine; the pool's pace is measured
RAM_SECONDS_PER_BYTE = 2e-10
RAM_SECONDS = 0.001
LABELS = {pb.TIER_NAME_RAM: "ram", pb.TIER_NAME_DISK: "disk", pb.TIER_NAME_POOL: "pool"}
FIRST_ASKED = 4


async def look_up(
    sidecar: Sidecar, addresses: list[bytes], timeout_seconds: float, is_counted: bool = True
) -> pb.LookupReply:
    """Return the parts of the run of `addresses` that is present; the pool gets `timeout_seconds` to answer."""
    tier = sidecar.tier
    if tier is None:
        return pb.LookupReply()  # there would be no slot to load into
    where = [_here(sidecar, tier, address) for address in addresses]
    in_pool = await _in_pool(sidecar, addresses, where, timeout_seconds)
    parts: list[pb.LookupReply.Part] = []
    for position, name in enumerate(where):
        if name is None and not in_pool[position]:
            num_missing = len(addresses) - position
            sidecar.counters.lookups.add(num_missing * is_counted, tier="all", result="miss")
            break
        name = name or pb.TIER_NAME_POOL
        if not parts or parts[-1].tier != name:
            parts.append(pb.LookupReply.Part(tier=name, first=position, count=0))
        parts[-1].count += 1
    for part in parts:
        part.seconds = _seconds(sidecar, part.tier, part.count * tier.arena.geometry.payload_bytes)
        sidecar.counters.lookups.add(part.count * is_counted, tier=LABELS[part.tier], result="hit")
    return pb.LookupReply(parts=parts)


def _here(sidecar: Sidecar, tier: RamTier, address: bytes) -> pb.TierName.ValueType | None:
    """Return which tier of this node has the block; RAM before disk."""
    if tier.index.sealed(address) is not None:
        return pb.TIER_NAME_RAM
    return pb.TIER_NAME_DISK if sidecar.disk.has(address) else None


def _seconds(sidecar: Sidecar, name: pb.TierName.ValueType, num_bytes: int) -> float:
    """Estimate what loading so many bytes takes; all of them go through RAM."""
    seconds = num_bytes * RAM_SECONDS_PER_BYTE + RAM_SECONDS
    if name == pb.TIER_NAME_RAM:
        return seconds
    slower = sidecar.disk if name == pb.TIER_NAME_DISK else sidecar.pool
    return seconds + slower.latency_seconds() + num_bytes * slower.seconds_per_byte()


async def _in_pool(
    sidecar: Sidecar, addresses: list[bytes], where: list[pb.TierName.ValueType | None], timeout_seconds: float
) -> list[bool]:
    found = [False] * len(addresses)
    absent = [position for position, name in enumerate(where) if name is None]
    if not absent or not sidecar.pool.enabled():
        return found
    # Not cancelled when our time is up: a node is known to be dead, and left alone, when the probe's own deadline ends.
    probing = sidecar.spawn(_probe_run(sidecar.pool, [addresses[position] for position in absent]))
    if not (await asyncio.wait([probing], timeout=timeout_seconds))[0]:
        return found
    for position, answer in zip(absent, probing.result(), strict=False):
        found[position] = answer
    return found


async def _probe_run(pool: PoolTier, addresses: list[bytes]) -> list[bool]:
    """Ask for the first few, and for the others only if those are there: most chains are not in the pool at all."""
    found = await pool.probe(addresses[:FIRST_ASKED])
    if all(found) and len(addresses) > FIRST_ASKED:
        found += await pool.probe(addresses[FIRST_ASKED:])
    return found
