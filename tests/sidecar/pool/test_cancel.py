"""A fetch that was cancelled writes nowhere any more: its slots may already be lent to somebody else. (E8's cousin.)"""

import asyncio
import random

import pytest

from tests.sidecar.pool.peers import slow_road
from tests.sidecar.pool.records import CANARY, fetch_all, operations, pool_over, records, store_all
from tests.support.memcached import needs_memcached, running_memcached

pytestmark = needs_memcached

_SIZE = 300_000
_CANARY = bytes([CANARY]) * _SIZE


async def test_a_storm_of_cancelled_fetches_leaves_canaries_alone_and_later_fetches_right() -> None:
    chance = random.Random(3)
    stored = records(24, _SIZE)
    addresses = [header.address for header, _ in stored]
    with running_memcached() as first, running_memcached() as second:
        async with pool_over([first, second]) as (pool, metrics):
            assert all(await store_all(pool, stored))
            slots = [bytearray(_SIZE) for _ in stored]
            num_cancelled = 0
            for _ in range(60):
                fetch = asyncio.create_task(
                    pool.fetch(addresses, [memoryview(slot) for slot in slots], lambda *_: None)
                )
                await asyncio.sleep(chance.random() * 0.008)
                fetch.cancel()
                try:
                    await fetch
                except asyncio.CancelledError:
                    num_cancelled += 1
                for slot in slots:
                    slot[:] = _CANARY
                await asyncio.sleep(0.001)
                assert all(slot == _CANARY for slot in slots)
            assert num_cancelled > 10
            assert operations(metrics, "fetch")["cancelled"] > 10
            assert set(operations(metrics, "fetch")) == {"hit", "cancelled"}
            assert await fetch_all(pool, stored) == list(range(24))


async def test_a_connection_that_owes_answers_when_its_fetch_is_cancelled_is_closed() -> None:
    stored = records(10, _SIZE)
    with running_memcached() as node:
        async with pool_over([node]) as (direct, _):
            assert all(await store_all(direct, stored))
        async with slow_road(node.port, 2e6, after_bytes=4000) as address, pool_over([address]) as (pool, metrics):
            slots = [bytearray(_CANARY) for _ in stored]
            addresses = [header.address for header, _ in stored]
            fetch = asyncio.create_task(pool.fetch(addresses, [memoryview(s) for s in slots], lambda *_: None))
            await asyncio.sleep(0.1)
            fetch.cancel()
            with pytest.raises(asyncio.CancelledError):
                await fetch
            assert pool._nodes["n0"].num_idle_connections == 0
            for slot in slots:
                slot[:] = _CANARY
            await asyncio.sleep(0.2)  # the rest arrives meanwhile, for nobody
            assert all(slot == _CANARY for slot in slots)
            assert operations(metrics, "fetch") == {"cancelled": 10}
            assert await pool.probe(addresses[:1]) == [True]  # being cancelled is no fault of the node


async def test_a_cancelled_caller_does_not_take_a_turn_with_it() -> None:
    stored = records(12, _SIZE)
    with running_memcached() as node:
        async with pool_over([node]) as (pool, _):
            assert all(await store_all(pool, stored))
            waiting = [asyncio.create_task(fetch_all(pool, stored)) for _ in range(10)]
            await asyncio.sleep(0)
            for task in waiting[::2]:
                task.cancel()
            answers = await asyncio.gather(*waiting, return_exceptions=True)
            assert [answer for answer in answers[1::2] if answer != list(range(12))] == []
            for gate in pool._nodes["n0"]._gates.values():
                assert not gate.locked()
