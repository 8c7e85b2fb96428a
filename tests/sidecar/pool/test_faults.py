"""A real memcached killed, stopped, filled, restarted and moved: counted misses, one deadline, then nothing, then hits.

Cases E5, E25 and K5 of the list that this project holds itself to.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from tests.sidecar.pool.records import (
    FAST,
    PATIENT,
    counts,
    fetch_all,
    named,
    operations,
    pool_over,
    records,
    store_all,
)
from tests.support.memcached import needs_memcached, running_memcached
from tests.support.ports import free_port

pytestmark = needs_memcached

_DEADLINE = FAST.operation_seconds
_NOTHING = 0.5  # seconds, on a machine that has other things to do
_RECOVERY_SECONDS = 5.0


async def _timed(awaitable: Awaitable[object]) -> float:
    start = time.monotonic()
    await awaitable
    return time.monotonic() - start


async def _eventually(is_so: Callable[[], Awaitable[bool]]) -> None:
    end = time.monotonic() + _RECOVERY_SECONDS
    while not await is_so():
        assert time.monotonic() < end, "did not recover"
        await asyncio.sleep(0.02)


async def test_a_node_that_is_not_there_costs_misses_and_no_time() -> None:
    stored = records(20)
    async with pool_over([f"127.0.0.1:{free_port()}"], FAST) as (pool, metrics):
        elapsed = await _timed(fetch_all(pool, stored))
        elapsed += await _timed(pool.probe([header.address for header, _ in stored]))
        assert await pool.store(*stored[0]) is False
        assert elapsed < _NOTHING
        assert operations(metrics, "fetch") == {"refused": 20}
        assert operations(metrics, "probe") == {"breaker": 20}
        assert operations(metrics, "store") == {"breaker": 1}
        assert b'pagoda_pool_node_up{node="n0"} 0.0' in metrics.exposition()


@pytest.mark.parametrize("address", ["a..b:1", f"{'x' * 70}:1"])
async def test_a_name_that_means_nothing_is_a_node_that_is_not_there(address: str) -> None:
    async with pool_over([address], FAST) as (pool, metrics):
        assert await fetch_all(pool, records(2)) == []
        assert operations(metrics, "fetch") == {"refused": 2}


async def test_a_node_killed_in_the_middle_of_a_get_gives_whole_records_or_none() -> None:
    """E5: every record reported before the kill is compared byte by byte; the rest are counted misses."""
    stored = records(60, 1_000_000)
    with running_memcached(memory_mib=128) as node:
        async with pool_over([node], FAST) as (pool, metrics):
            assert all(await store_all(pool, stored))
            slots = [memoryview(bytearray(1_000_000)) for _ in stored]
            ready: list[int] = []

            def on_ready(index: int, _: object) -> None:
                assert slots[index] == stored[index][1]
                ready.append(index)
                if len(ready) == 5:
                    node.kill()

            start = time.monotonic()
            await pool.fetch([header.address for header, _ in stored], slots, on_ready)
            assert time.monotonic() - start < _DEADLINE + 0.5
            assert 5 <= len(ready) < 60
            outcomes = operations(metrics, "fetch")
            assert outcomes == {"hit": len(ready), "lost": 60 - len(ready)}
            assert counts(metrics, "pagoda_integrity_failures") == {}
            node.restart()
            await _eventually(lambda: pool.store(*stored[7]))
            assert await fetch_all(pool, stored[5:10]) == [2]


async def test_a_stopped_node_costs_everybody_one_deadline_once_and_then_nothing() -> None:
    stored = records(40)
    addresses = [header.address for header, _ in stored]
    with running_memcached() as well, running_memcached() as stopped:
        async with pool_over([well, stopped], FAST) as (pool, metrics):
            assert all(await store_all(pool, stored))
            alive = [i for i, address in enumerate(addresses) if pool._rendezvous.owner(address) == "n0"]
            stopped.stop()
            # Under load: more callers than there are connections, of every kind.
            start = time.monotonic()
            fetches = [asyncio.create_task(fetch_all(pool, stored)) for _ in range(8)]
            others = [asyncio.create_task(pool.probe(addresses)) for _ in range(8)]
            stores = [asyncio.create_task(pool.store(*stored[index])) for index in range(40)]
            assert all([await task == alive for task in fetches])
            assert all([[i for i, found in enumerate(await task) if found] == alive for task in others])
            assert [index for index, task in enumerate(stores) if await task] == alive
            assert _DEADLINE * 0.9 < time.monotonic() - start < _DEADLINE * 1.9
            for _ in range(5):
                assert await _timed(fetch_all(pool, stored)) < _NOTHING
                assert await _timed(pool.probe(addresses)) < _NOTHING
                await asyncio.sleep(0.4)  # pings come and go, unnoticed
            outcomes = operations(metrics, "fetch")
            assert {"hit", "timeout", "breaker"} <= set(outcomes) <= {"hit", "timeout", "breaker", "busy"}
            assert sum(outcomes.values()) == 13 * 40
            assert operations(metrics, "ping").keys() == {"timeout"}
            stopped.resume()

            async def all_back() -> bool:
                return await fetch_all(pool, stored) == list(range(40))

            await _eventually(all_back)
            assert operations(metrics, "ping")["answered"] == 1


async def test_a_node_stopped_between_answers_costs_one_deadline_and_nothing_is_written_afterwards() -> None:
    stored = records(60, 1_000_000)
    with running_memcached(memory_mib=128) as node:
        async with pool_over([node], FAST) as (pool, _):
            assert all(await store_all(pool, stored))
            slots = [bytearray(1_000_000) for _ in stored]
            ready: list[int] = []

            def on_ready(index: int, _: object) -> None:
                ready.append(index)
                if len(ready) == 3:
                    node.stop()

            addresses = [header.address for header, _ in stored]
            elapsed = await _timed(pool.fetch(addresses, [memoryview(slot) for slot in slots], on_ready))
            assert elapsed < _DEADLINE + 0.5
            assert 3 <= len(ready) < 60
            canary = b"\xc5" * 1_000_000
            for slot in slots:
                slot[:] = canary
            node.resume()
            await asyncio.sleep(0.3)
            assert all(slot == canary for slot in slots)


async def test_a_full_node_evicts_and_goes_on() -> None:
    """K5: ten times the memory is written; what is left is right, what is gone is a miss."""
    stored = records(160, 1_000_000)
    with running_memcached(memory_mib=16, item_limit="1m") as node:
        async with pool_over([node], PATIENT) as (pool, metrics):
            assert all(await store_all(pool, stored))
            found = await fetch_all(pool, stored)
            assert 1 <= len(found) <= 20
            outcomes = operations(metrics, "fetch")
            assert outcomes["hit"] == len(found)
            assert set(outcomes) <= {"hit", "miss", "torn"}
            assert int(node.statistics()["evictions"]) > 0


async def test_a_node_that_may_not_evict_refuses_and_stays_usable() -> None:
    stored = records(40, 1_000_000)
    with running_memcached(memory_mib=16, item_limit="2m", arguments=["-M"]) as node:
        async with pool_over([node], PATIENT) as (pool, metrics):
            accepted = [index for index, good in enumerate(await store_all(pool, stored)) if good]
            assert 1 <= len(accepted) < 40
            assert operations(metrics, "store") == {"stored": len(accepted), "full": 40 - len(accepted)}
            assert await fetch_all(pool, stored) == accepted
            assert int(node.statistics()["total_connections"]) < 6  # a refusal costs no connection


async def test_a_restarted_node_is_used_again_without_a_failure() -> None:
    stored = records(5)
    with running_memcached() as node:
        async with pool_over([node], PATIENT) as (pool, metrics):
            assert all(await store_all(pool, stored))
            node.restart()
            assert await fetch_all(pool, stored) == []
            assert operations(metrics, "fetch") == {"miss": 5}
            assert all(await store_all(pool, stored))
            assert await fetch_all(pool, stored) == [0, 1, 2, 3, 4]


async def test_a_node_that_was_away_for_long_is_found_again_under_its_new_address() -> None:
    stored = records(5)
    with running_memcached() as node:
        async with pool_over([node], PATIENT) as (pool, metrics):
            assert all(await store_all(pool, stored))
            node.kill()
            assert await fetch_all(pool, stored) == []
            await asyncio.sleep(0.5)
            assert operations(metrics, "ping")["refused"] >= 2
            node.start()
            pool.set_nodes(named(node))
            assert all(await store_all(pool, stored))  # at once: what was known of the old address is void
            assert await fetch_all(pool, stored) == [0, 1, 2, 3, 4]


async def test_a_pool_closed_while_a_node_is_down_leaves_no_task_behind() -> None:
    async with pool_over([f"127.0.0.1:{free_port()}"], FAST) as (pool, _):
        await fetch_all(pool, records(1))
        assert len(asyncio.all_tasks()) == 2
        await pool.close()
        assert len(asyncio.all_tasks()) == 1
