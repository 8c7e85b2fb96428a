"""The pool over real nodes that are well."""

import asyncio
import random
from collections.abc import Iterator

import pytest

from pagoda_runtime.metrics import Metrics
from pagoda_sidecar.pool import MemcachedPool, PoolCounters, PoolSettings, keys
from tests.sidecar.pool.records import (
    NAMESPACE,
    fetch_all,
    named,
    operations,
    pool_over,
    record,
    records,
    store_all,
)
from tests.support.memcached import Memcached, needs_memcached, running_memcached

pytestmark = needs_memcached


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Memcached]]:
    with running_memcached() as first, running_memcached() as second, running_memcached(item_limit="1m") as third:
        yield [first, second, third]


@pytest.fixture
def nodes(servers: list[Memcached]) -> list[Memcached]:
    for server in servers:
        server.restart()  # flush_all spares what is younger than a second
    return servers


async def test_what_is_stored_is_found_and_fetched_over_several_nodes(nodes: list[Memcached]) -> None:
    stored = records(60)
    async with pool_over(nodes) as (pool, metrics):
        assert await store_all(pool, stored[:50]) == [True] * 50
        assert await pool.probe([header.address for header, _ in stored]) == [True] * 50 + [False] * 10
        assert await fetch_all(pool, stored) == list(range(50))
        assert operations(metrics, "store") == {"stored": 50}
        assert operations(metrics, "probe") == {"hit": 50, "miss": 10}
        assert operations(metrics, "fetch") == {"hit": 50, "miss": 10}
        assert metrics.exposition().count(b"pagoda_pool_node_up{") == 3
    assert all(int(node.statistics()["curr_items"]) > 5 for node in nodes)


async def test_records_come_in_the_order_asked_for_and_one_by_one(nodes: list[Memcached]) -> None:
    stored = records(40, 100_000)
    order = list(range(40))
    random.Random(1).shuffle(order)
    ready: list[int] = []
    slots = [memoryview(bytearray(100_000)) for _ in order]
    settings = PoolSettings(window_bytes=1_000_000)  # four windows
    async with pool_over(nodes[:1], settings) as (pool, _):
        assert all(await store_all(pool, stored))
        addresses = [stored[index][0].address for index in order]
        await pool.fetch(addresses, slots, lambda index, _: ready.append(index))
    assert ready == list(range(40))
    assert all(slots[position] == stored[index][1] for position, index in enumerate(order))


async def test_a_slot_may_be_longer_than_the_payload(nodes: list[Memcached]) -> None:
    header, payload = record(1, 5000)
    slot = bytearray(b"\xc5") * 8192
    ready: list[int] = []
    async with pool_over(nodes[:1]) as (pool, _):
        await pool.store(header, payload)
        await pool.fetch([header.address], [memoryview(slot)], lambda index, _: ready.append(index))
    assert ready == [0]
    assert slot == bytes(payload) + b"\xc5" * (8192 - 5000)


async def test_many_small_records_and_many_probes_go_in_bounded_batches(nodes: list[Memcached]) -> None:
    stored = records(700, 64)
    async with pool_over(nodes[:1]) as (pool, _):
        assert all(await asyncio.gather(*(pool.store(header, payload) for header, payload in stored)))
        assert await pool.probe([header.address for header, _ in stored]) == [True] * 700
        assert await fetch_all(pool, stored) == list(range(700))
        assert pool._nodes["n0"].num_idle_connections <= 6


async def test_a_probe_does_not_count_as_use(nodes: list[Memcached]) -> None:
    stored = record(1)
    async with pool_over(nodes[:1]) as (pool, _):
        await pool.store(*stored)
        assert await pool.probe([stored[0].address]) == [True]
        key = keys.record_key(NAMESPACE, stored[0].address)
        assert nodes[0].command(b"mg %b h\r\n" % key) == b"HD h0\r\n"


@pytest.mark.parametrize("difference", [-1, 0, 1, 2])
async def test_a_record_at_the_node_s_item_limit_goes_whole_and_one_above_goes_in_parts(
    nodes: list[Memcached], difference: int
) -> None:
    largest = (1 << 20) - 109 - 128  # what memcached was seen to take under a key of 46 bytes, less our header
    stored = record(5, largest + difference)
    async with pool_over(nodes[2:]) as (pool, metrics):
        assert await pool.store(*stored)
        assert operations(metrics, "store") == {"stored": 1}
        assert await fetch_all(pool, [stored]) == [0]
    assert int(nodes[2].statistics()["curr_items"]) == (1 if difference <= 0 else 2)  # head, part


async def test_a_large_record_is_split_stored_twice_without_harm_and_read_among_others(nodes: list[Memcached]) -> None:
    stored = [record(1), record(2, 5_000_000), record(3), record(4, 3_000_000), record(5, 2_000_000)]
    async with pool_over(nodes[2:]) as (pool, metrics):
        assert all(await store_all(pool, stored))
        assert await fetch_all(pool, stored) == [0, 1, 2, 3, 4]
        assert all(await store_all(pool, stored))
        assert operations(metrics, "store") == {"stored": 7, "exists": 3}
        assert await fetch_all(pool, stored) == [0, 1, 2, 3, 4]


async def test_a_split_record_without_one_part_is_a_miss_and_can_be_stored_again(nodes: list[Memcached]) -> None:
    header, payload = record(2, 3_000_000)
    async with pool_over(nodes[2:]) as (pool, metrics):
        assert await pool.store(header, payload)
        part = keys.part_key(NAMESPACE, header.address, header.xxh3, 1)
        assert nodes[2].command(b"md %b\r\n" % part) == b"HD\r\n"
        assert await fetch_all(pool, [(header, payload)]) == []
        assert operations(metrics, "fetch") == {"torn": 1}
        assert await pool.probe([header.address]) == [False]
        assert await pool.store(header, payload)
        assert await fetch_all(pool, [(header, payload)]) == [0]


async def test_a_split_record_is_invisible_until_its_last_part_is_acknowledged(nodes: list[Memcached]) -> None:
    header, payload = record(2, 3_000_000)
    async with pool_over(nodes[2:]) as (pool, _):
        nodes[2].stop()
        storing = asyncio.create_task(pool.store(header, payload))
        await asyncio.sleep(0.1)
        storing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await storing
        nodes[2].resume()
        assert await pool.probe([header.address]) == [False]


async def test_nothing_is_read_or_written_before_a_namespace_is_set_or_without_nodes(nodes: list[Memcached]) -> None:
    stored = record(1)
    pool = MemcachedPool((), PoolCounters(Metrics()))
    assert (pool.enabled(), pool.off_reason) == (False, "no memcached nodes are configured")
    pool.set_nodes(named(nodes[0]))
    assert (pool.enabled(), pool.off_reason) == (False, "no engine has announced its namespace")
    assert not await pool.store(*stored)
    assert await pool.probe([stored[0].address]) == [False]
    assert await fetch_all(pool, [stored]) == []
    with pytest.raises(ValueError, match="namespace: expected 32 bytes, got 16"):
        pool.set_namespace(NAMESPACE[:16])
    pool.set_namespace(NAMESPACE)
    assert (pool.enabled(), pool.off_reason) == (True, "")
    assert await pool.store(*stored)
    await pool.close()
    assert not pool.enabled()
    assert await fetch_all(pool, [stored]) == []


async def test_a_block_of_another_namespace_is_neither_stored_nor_found(nodes: list[Memcached]) -> None:
    stored = record(1)
    async with pool_over(nodes[:1]) as (pool, metrics):
        assert await pool.store(*stored)
        pool.set_namespace(bytes(32))
        assert await fetch_all(pool, [stored]) == []
        assert not await pool.store(*stored)
        assert operations(metrics, "store") == {"stored": 1, "other_namespace": 1}


async def test_a_slot_that_changed_since_it_was_sealed_is_not_sent(nodes: list[Memcached]) -> None:
    header, payload = record(1)
    changed = bytearray(payload)
    changed[-1] ^= 1
    async with pool_over(nodes[:1]) as (pool, metrics):
        assert not await pool.store(header, memoryview(changed))
        assert not await pool.store(header, payload[:-1])
        assert operations(metrics, "store") == {"corrupt": 2}
    assert int(nodes[0].statistics()["curr_items"]) == 0


async def test_kept_nodes_keep_their_connections_when_the_list_changes(nodes: list[Memcached]) -> None:
    stored = records(30)
    async with pool_over(nodes[:2]) as (pool, metrics):
        assert all(await store_all(pool, stored))
        kept = pool._nodes["n0"]
        connections = int(nodes[0].statistics()["total_connections"])
        pool.set_nodes(named(*nodes))
        pool.set_nodes(named(nodes[0]))
        found = await fetch_all(pool, stored)
        assert 5 < len(found) < 25  # what lay on n0 still does
        assert pool._nodes["n0"] is kept
        assert int(nodes[0].statistics()["total_connections"]) == connections + 1  # the one that asks for this figure
        assert b'node_up{node="n1"}' not in metrics.exposition()


async def test_a_host_name_is_resolved(nodes: list[Memcached]) -> None:
    async with pool_over([f"localhost:{nodes[0].port}"]) as (pool, _):
        assert await pool.store(*record(1))


async def test_an_error_of_the_caller_is_raised_and_the_pool_stays_usable(nodes: list[Memcached]) -> None:
    stored = records(5)
    slots = [memoryview(bytearray(len(payload))) for _, payload in stored]

    def fail(_: int, __: object) -> None:
        raise LookupError("ours")

    async with pool_over(nodes[:1]) as (pool, _):
        assert all(await store_all(pool, stored))
        with pytest.raises(ExceptionGroup) as raised:
            await pool.fetch([header.address for header, _ in stored], slots, fail)
        assert isinstance(raised.value.exceptions[0], LookupError)
        assert await fetch_all(pool, stored) == [0, 1, 2, 3, 4]


async def test_pace_follows_what_was_seen(nodes: list[Memcached]) -> None:
    stored = records(20, 500_000)
    async with pool_over(nodes[:1]) as (pool, _):
        first = pool.seconds_per_byte(), pool.latency_seconds()
        assert all(await store_all(pool, stored))
        await fetch_all(pool, stored)
        assert (pool.seconds_per_byte(), pool.latency_seconds()) != first
        assert 1e-11 < pool.seconds_per_byte() < 1e-7
        assert 1e-5 < pool.latency_seconds() < 0.2


async def test_memory_is_let_go_when_a_fetch_has_returned(nodes: list[Memcached]) -> None:
    stored = record(1)
    slot = bytearray(len(stored[1]))
    async with pool_over(nodes[:1]) as (pool, _):
        await pool.store(*stored)
        with memoryview(slot) as view:
            await pool.fetch([stored[0].address], [view], lambda *_: None)
        slot.append(0)  # refused while anybody holds a view
