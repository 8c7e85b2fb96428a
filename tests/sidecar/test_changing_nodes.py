"""A list of nodes that changes while records move, on real memcacheds."""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence

import pytest

from pagoda_protocol.records import RecordHeader
from pagoda_runtime.metrics import Metrics
from pagoda_sidecar.pool import PoolNode
from pagoda_sidecar.pool_thread import PoolThread
from tests.sidecar.pool.records import FAST, NAMESPACE, PATIENT, Record, operations, records
from tests.support.memcached import Memcached, needs_memcached, running_memcached

pytestmark = needs_memcached

_CHANGES = 40
_CHANGE_SECONDS = 0.03


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Memcached]]:
    with running_memcached() as first, running_memcached() as second, running_memcached() as third:
        yield [first, second, third]


class _Load:
    """Stores, fetches and probes without end; whatever comes back is held against what was sealed."""

    def __init__(self, pool: PoolThread, stored: Sequence[Record]) -> None:
        self.pool = pool
        self.stored = stored
        self.num_hits = 0
        self.is_over = False

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for work in (self._store, self._fetch, self._fetch, self._probe):
                tasks.create_task(self._repeat(work))

    async def _repeat(self, work: object) -> None:
        chance = random.Random(str(work))
        while not self.is_over:
            await asyncio.sleep(0)  # without nodes nothing below waits
            await work(chance.sample(range(len(self.stored)), 10))  # type: ignore[operator]

    async def _store(self, chosen: Sequence[int]) -> None:
        await self.pool.store_all([self.stored[index] for index in chosen])

    async def _probe(self, chosen: Sequence[int]) -> None:
        await self.pool.probe([self.stored[index][0].address for index in chosen])

    async def _fetch(self, chosen: Sequence[int]) -> None:
        slots = [bytearray(len(self.stored[index][1])) for index in chosen]

        def on_ready(position: int, header: RecordHeader) -> None:
            assert (header, slots[position]) == self.stored[chosen[position]]
            self.num_hits += 1

        addresses = [self.stored[index][0].address for index in chosen]
        await self.pool.fetch(addresses, [memoryview(slot) for slot in slots], on_ready)


def _connections(server: Memcached) -> int:
    return int(server.statistics()["curr_connections"])


async def _all_there(pool: PoolThread, stored: Sequence[Record]) -> None:
    assert set(await pool.store_all(stored)) <= {"stored", "exists"}
    load = _Load(pool, stored)
    await load._fetch(range(len(stored)))
    assert load.num_hits == len(stored)


async def test_nodes_come_go_and_change_their_names_under_load_and_nothing_fails(servers: list[Memcached]) -> None:
    stored = records(60, 100_000)
    before = [_connections(server) for server in servers]
    metrics = Metrics()
    pool = PoolThread(metrics, PATIENT)
    pool.set_namespace(NAMESPACE)
    chance = random.Random(7)
    load = _Load(pool, stored)
    loading = asyncio.create_task(load.run())
    try:
        end = time.monotonic() + 60
        num_changes = 0
        while num_changes < _CHANGES or load.num_hits < 100:
            assert time.monotonic() < end, "nothing is found"
            num_changes += 1
            chosen = chance.sample(range(3), chance.randint(0, 3))
            names = chance.sample(["a", "b", "c", "d"], len(chosen))
            pool.set_nodes([PoolNode(name, servers[index].address) for name, index in zip(names, chosen, strict=True)])
            await asyncio.sleep(_CHANGE_SECONDS)
        pool.set_nodes([PoolNode("a", servers[0].address)])
        load.is_over = True
        async with asyncio.timeout(60):
            await loading
        for operation in ("store", "fetch", "probe"):
            assert set(operations(metrics, operation)) <= {"stored", "exists", "hit", "miss", "breaker"}, operation
        await _all_there(pool, stored)
        for server, num_before in zip(servers[1:], before[1:], strict=True):
            assert _connections(server) == num_before, "a node that is gone keeps connections"
        assert metrics.exposition().count(b"pagoda_pool_node_up{") == 1
    finally:
        load.is_over = True
        await asyncio.gather(loading, return_exceptions=True)
        await pool.close()
    assert [_connections(server) for server in servers] == before


async def test_keys_that_moved_are_misses_and_hits_once_stored_again_the_others_stay_hits(
    servers: list[Memcached],
) -> None:
    for server in servers:
        server.restart()
    stored = records(80, 1000)
    two = [PoolNode("a", servers[0].address), PoolNode("b", servers[1].address)]
    pool = PoolThread(Metrics(), PATIENT)
    pool.set_namespace(NAMESPACE)
    try:
        pool.set_nodes(two)
        await _all_there(pool, stored)
        pool.set_nodes([*two, PoolNode("c", servers[2].address)])
        found = await pool.probe([header.address for header, _ in stored])
        assert 35 < sum(found) < 70  # a third has moved
        lacking = [one for one, is_there in zip(stored, found, strict=True) if not is_there]
        await pool.store_all(lacking)
        assert all(await pool.probe([header.address for header, _ in stored]))
        pool.set_nodes(two)  # what lay with these two first is found there again
        assert all(await pool.probe([header.address for header, _ in stored]))
        pool.set_nodes([PoolNode("x", servers[0].address), PoolNode("b", servers[1].address)])
        renamed = await pool.probe([header.address for header, _ in stored])
        assert 10 < sum(renamed) < 80
    finally:
        await pool.close()


async def test_a_node_that_died_in_mid_exchange_is_used_under_its_new_address_at_once(
    servers: list[Memcached],
) -> None:
    """K5's last step: the same name under another address, and no wait for the breaker of the old one."""
    stored = records(10, 100_000)
    pool = PoolThread(Metrics(), FAST)
    pool.set_namespace(NAMESPACE)
    with running_memcached() as node:
        try:
            pool.set_nodes([PoolNode("a", node.address)])
            await _all_there(pool, stored)
            node.stop()
            assert set(await pool.store_all(stored)) <= {"timeout", "breaker"}
            node.move()
            pool.set_nodes([PoolNode("a", node.address)])
            start = time.monotonic()
            assert await pool.probe([header.address for header, _ in stored]) == [False] * 10
            await _all_there(pool, stored)
            assert time.monotonic() - start < 5.0
        finally:
            await pool.close()
