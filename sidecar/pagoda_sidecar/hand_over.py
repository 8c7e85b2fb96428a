"""A hand-over: what this node holds reaches the pool within a budget, RAM first, then what is hot and on disk alone.

Records on disk are read into memory of their own, not into slots: nobody here will use them again.
"""

from collections.abc import Sequence
from dataclasses import replace

from pagoda_protocol.records import HANDED_OVER, RecordHeader
from pagoda_runtime.deadlines import Deadline
from pagoda_sidecar.arena.tier import RamTier
from pagoda_sidecar.disk.index import Entry
from pagoda_sidecar.disk.layout import padded
from pagoda_sidecar.disk.memory import aligned
from pagoda_sidecar.disk.tier import DiskTier
from pagoda_sidecar.pool import STORED
from pagoda_sidecar.pool_tier import PoolTier
from pagoda_sidecar.pushes import Pusher, PushResult

BATCH = 16


async def hand_over(
    tier: RamTier, disk: DiskTier, pool: PoolTier, pusher: Pusher, budget_bytes: int, budget_seconds: float
) -> PushResult:
    """Push what the pool lacks; what it has already costs a probe and counts as nothing."""
    deadline = Deadline(budget_seconds)
    result = await pusher.push_all(tier, budget_bytes, budget_seconds)
    hot = disk.hot_elsewhere()
    for start in range(0, len(hot), BATCH):
        if deadline.expired or result.num_bytes >= budget_bytes or not (disk.enabled() and pool.enabled()):
            result.num_left += len(hot) - start
            break
        await _push(disk, pool, hot[start : start + BATCH], budget_bytes, result)
    return result


async def _push(
    disk: DiskTier, pool: PoolTier, entries: Sequence[Entry], budget_bytes: int, result: PushResult
) -> None:
    found = await pool.probe([entry.link.address for entry in entries])
    lacking = [entry for entry, is_there in zip(entries, found, strict=True) if not is_there]
    affordable: list[Entry] = []
    room = budget_bytes - result.num_bytes
    for entry in lacking:
        room -= entry.payload_bytes
        if room >= 0:
            affordable.append(entry)
    views = [aligned(padded(entry.payload_bytes)) for entry in affordable]
    records: list[tuple[RecordHeader, memoryview]] = []

    def on_ready(number: int, header: RecordHeader) -> None:
        records.append((replace(header, flags=HANDED_OVER), views[number][: header.payload_bytes]))

    await disk.fetch([entry.link.address for entry in affordable], views, on_ready)
    outcomes = await pool.store_all(records) if records else []
    sent = [header for (header, _), outcome in zip(records, outcomes, strict=True) if outcome in STORED]
    result.num_blocks += len(sent)
    result.num_bytes += sum(header.payload_bytes for header in sent)
    result.num_left += len(lacking) - len(sent)
