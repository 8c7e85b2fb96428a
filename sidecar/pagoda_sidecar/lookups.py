"""Lookup: the longest run present, tier by tier. Existence only: no lease, no recency."""

import asyncio

from pagoda_protocol.tier import tier_pb2 as pb
from pagoda_sidecar.sidecar import Sidecar

# What copying out of the arena costs an engine; the pool's pace is measured
RAM_SECONDS_PER_BYTE = 2e-10
RAM_SECONDS = 0.001


async def look_up(sidecar: Sidecar, addresses: list[bytes], timeout_seconds: float) -> pb.LookupReply:
    """Return the parts of the run of `addresses` that is present; the pool gets `timeout_seconds` to answer."""
    tier = sidecar.tier
    if tier is None:
        return pb.LookupReply()  # there would be no slot to load into
    in_ram = [tier.index.sealed(address) is not None for address in addresses]
    in_pool = await _in_pool(sidecar, addresses, in_ram, timeout_seconds)
    parts: list[pb.LookupReply.Part] = []
    for position, is_in_ram in enumerate(in_ram):
        if not is_in_ram and not in_pool[position]:
            sidecar.counters.lookups.add(len(addresses) - position, tier="all", result="miss")
            break
        name = pb.TIER_NAME_RAM if is_in_ram else pb.TIER_NAME_POOL
        if not parts or parts[-1].tier != name:
            parts.append(pb.LookupReply.Part(tier=name, first=position, count=0))
        parts[-1].count += 1
    for part in parts:
        num_bytes = part.count * tier.arena.geometry.payload_bytes
        is_ram = part.tier == pb.TIER_NAME_RAM
        part.seconds = num_bytes * RAM_SECONDS_PER_BYTE + RAM_SECONDS
        if not is_ram:
            part.seconds += sidecar.pool.latency_seconds() + num_bytes * sidecar.pool.seconds_per_byte()
        sidecar.counters.lookups.add(part.count, tier="ram" if is_ram else "pool", result="hit")
    return pb.LookupReply(parts=parts)


async def _in_pool(sidecar: Sidecar, addresses: list[bytes], in_ram: list[bool], timeout_seconds: float) -> list[bool]:
    found = [False] * len(addresses)
    absent = [position for position, is_in_ram in enumerate(in_ram) if not is_in_ram]
    if not absent or not sidecar.pool.enabled():
        return found
    # Not cancelled when our time is up: a node is known to be dead, and left alone, when the probe's own deadline ends.
    probing = sidecar.spawn(sidecar.pool.probe([addresses[position] for position in absent]))
    if not (await asyncio.wait([probing], timeout=timeout_seconds))[0]:
        return found
    for position, answer in zip(absent, probing.result(), strict=True):
        found[position] = answer
    return found
