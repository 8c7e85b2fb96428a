"""Which stores share a batch, and what a cancelled caller does to the others."""

import asyncio
import contextlib
from collections.abc import Sequence

from pagoda_sidecar.pool.errors import NodeLate
from pagoda_sidecar.pool.lane import StoreLane
from pagoda_sidecar.pool.stores import Storing
from tests.sidecar.pool.records import NAMESPACE, fetch_all, operations, pool_over, record, records, store_all
from tests.support.memcached import needs_memcached, running_memcached


class _Wire:
    """Takes batches and decides them when told to."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()

    async def send(self, batch: Sequence[Storing]) -> None:
        self.batches.append([storing.header.index for storing in batch])
        await self.gate.wait()
        for storing in batch:
            storing.decide("stored")


def _start(lane: StoreLane, number: int, size: int = 100) -> "asyncio.Task[str]":
    return asyncio.create_task(lane.store(Storing(NAMESPACE, *record(number, size))))


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_stores_that_wait_for_one_another_go_together_within_the_window() -> None:
    wire = _Wire()
    lane = StoreLane(wire.send, window_bytes=250)
    stores = [_start(lane, number) for number in range(3)] + [_start(lane, 3, 1000), _start(lane, 4)]
    await _turns()
    assert wire.batches == [[0, 1]]
    wire.gate.set()
    assert await asyncio.gather(*stores) == ["stored"] * 5
    assert wire.batches == [[0, 1], [2], [3], [4]]


async def test_a_store_cancelled_while_it_waits_is_never_sent() -> None:
    wire = _Wire()
    lane = StoreLane(wire.send, 250)
    stores = [_start(lane, number) for number in range(4)]
    await _turns()
    stores[2].cancel()
    await _turns()
    wire.gate.set()
    outcomes = await asyncio.gather(*stores, return_exceptions=True)
    assert isinstance(outcomes.pop(2), asyncio.CancelledError)
    assert outcomes == ["stored"] * 3
    assert wire.batches == [[0, 1], [3]]


async def test_a_store_cancelled_on_the_wire_takes_its_batch_along_and_no_other() -> None:
    wire = _Wire()
    lane = StoreLane(wire.send, 250)
    stores = [_start(lane, number) for number in range(4)]
    await _turns()
    stores[0].cancel()
    await _turns()
    wire.gate.set()
    outcomes = await asyncio.gather(*stores, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert outcomes[1:] == ["cancelled", "stored", "stored"]
    assert len(asyncio.all_tasks()) == 1


async def test_a_store_cancelled_in_the_moment_it_is_acknowledged_disturbs_nobody() -> None:
    gate = asyncio.Event()

    async def send(batch: Sequence[Storing]) -> None:
        batch[0].decide("stored")
        await gate.wait()
        batch[1].decide("stored")

    lane = StoreLane(send, 1 << 20)
    stores = [_start(lane, number) for number in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # decided, but its caller has not run yet
    stores[0].cancel()
    await _turns()
    gate.set()
    assert (await asyncio.gather(*stores, return_exceptions=True))[1] == "stored"


async def test_a_node_s_failure_is_the_outcome_of_what_was_not_acknowledged() -> None:
    async def send(batch: Sequence[Storing]) -> None:
        batch[0].decide("stored")
        raise NodeLate

    lane = StoreLane(send, 1 << 20)
    assert await asyncio.gather(*(_start(lane, number) for number in range(3))) == ["stored", "timeout", "timeout"]


@needs_memcached
async def test_memory_of_a_cancelled_store_is_not_read_any_more() -> None:
    """What reached the node under that address is the whole old record or nothing."""
    stored = records(8, 4_000_000)
    with running_memcached(memory_mib=128) as node:
        async with pool_over([node]) as (pool, metrics):
            await store_all(pool, [record(99)])
            for header, payload in stored:
                memory = bytearray(payload)
                storing = asyncio.create_task(pool.store(header, memoryview(memory)))
                await asyncio.sleep(0.001)
                storing.cancel()
                with contextlib.suppress(asyncio.CancelledError):  # or it was that fast
                    await storing
                memory[:] = bytes(len(memory))
            assert await fetch_all(pool, [record(99)]) == [0]
            await fetch_all(pool, stored)
            assert "corrupt" not in operations(metrics, "fetch")
            assert await pool.store(*stored[0])
            assert await fetch_all(pool, stored[:1]) == [0]
