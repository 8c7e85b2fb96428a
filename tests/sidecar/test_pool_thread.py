"""The pool behind its thread, over a real memcached: what holds on the control loop's side."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from pagoda_protocol.records import RecordHeader
from pagoda_runtime.metrics import Metrics
from pagoda_sidecar.pool import PoolSettings
from pagoda_sidecar.pool_thread import PoolThread
from tests.sidecar.pool.records import CANARY, FAST, NAMESPACE, PATIENT, named, operations, records
from tests.support.memcached import Memcached, needs_memcached, running_memcached

pytestmark = needs_memcached


@pytest.fixture(scope="module")
def server() -> Iterator[Memcached]:
    with running_memcached(memory_mib=256) as node:
        yield node


@pytest.fixture
def node(server: Memcached) -> Memcached:
    server.restart()
    return server


@contextlib.asynccontextmanager
async def _pool(node: Memcached, settings: PoolSettings = PATIENT) -> AsyncIterator[tuple[PoolThread, Metrics]]:
    metrics = Metrics()
    pool = PoolThread(metrics, settings)
    try:
        pool.set_nodes(named(node))
        pool.set_namespace(NAMESPACE)
        yield pool, metrics
    finally:
        await pool.close()
        assert not pool._thread.is_alive()


async def test_records_go_there_and_come_back_reported_in_the_control_loop(node: Memcached) -> None:
    stored = records(40)
    slots = [bytearray(len(payload)) for _, payload in stored]
    reported: list[int] = []

    def on_ready(index: int, header: RecordHeader) -> None:
        assert threading.current_thread() is threading.main_thread()
        assert (header, slots[index]) == (stored[index][0], stored[index][1])
        reported.append(index)

    async with _pool(node) as (pool, _):
        assert await pool.store_all(stored) == ["stored"] * 40
        addresses = [header.address for header, _ in stored]
        assert await pool.probe([*addresses, b"x" * 32]) == [True] * 40 + [False]
        await pool.fetch(addresses, [memoryview(slot) for slot in slots], on_ready)
        assert reported == list(range(40)), "reported after its end, or not at all"


async def test_each_record_has_its_own_outcome(node: Memcached) -> None:
    stored = records(3)
    stored[1] = stored[1][0], stored[2][1]
    async with _pool(node) as (pool, _):
        assert await pool.store_all(stored) == ["stored", "corrupt", "stored"]
        node.kill()
        assert set(await pool.store_all(records(3))) <= {"refused", "breaker", "lost"}


async def test_a_record_of_our_own_is_found_at_once_though_it_was_absent_a_moment_ago(node: Memcached) -> None:
    ((header, payload),) = records(1)
    async with _pool(node, PoolSettings(absent_seconds=3600.0)) as (pool, metrics):
        assert await pool.probe([header.address]) == [False]
        assert await pool.probe([header.address]) == [False]
        assert operations(metrics, "probe") == {"miss": 1}
        await pool.store_all([(header, payload)])
        assert await pool.probe([header.address]) == [True]


async def test_a_record_of_another_pod_is_found_by_a_load_though_it_was_absent_a_moment_ago(node: Memcached) -> None:
    stored = records(1)
    address, slot = stored[0][0].address, bytearray(len(stored[0][1]))
    async with _pool(node, PoolSettings(absent_seconds=3600.0)) as (pool, _), _pool(node) as (other, _):
        assert await pool.probe([address]) == [False]
        await other.store_all(stored)
        assert await pool.probe([address]) == [False]
        reported: list[int] = []
        await pool.fetch([address], [memoryview(slot)], lambda index, _: reported.append(index))
        assert reported == [0]
        assert await pool.probe([address]) == [True]


async def test_a_cancelled_call_has_ended_over_there_when_it_has_ended_here(node: Memcached) -> None:
    stored = records(50, 1_000_000)
    slots = [bytearray([CANARY]) * 1_000_000 for _ in stored]
    async with _pool(node) as (pool, _):
        assert await pool.store_all(stored) == ["stored"] * 50
        first = asyncio.Event()
        addresses, views = [header.address for header, _ in stored], [memoryview(slot) for slot in slots]
        fetching = asyncio.create_task(pool.fetch(addresses, views, lambda *_: first.set()))
        await first.wait()
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        for slot in slots:
            slot[:] = bytes([CANARY]) * len(slot)
        await asyncio.sleep(0.1)
        assert all(slot.count(CANARY) == len(slot) for slot in slots)


async def test_a_cancelled_call_waits_for_its_end_over_there_however_often_it_is_cancelled(
    node: Memcached, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, has_ended = threading.Event(), threading.Event()

    async def fetch(*_: object) -> None:
        has_begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            time.sleep(0.3)  # noqa: ASYNC251 - the other thread is busy with the caller's memory
            has_ended.set()

    async with _pool(node) as (pool, _):
        monkeypatch.setattr(pool._pool, "fetch", fetch)
        fetching = asyncio.create_task(pool.fetch([], [], lambda *_: None))
        await asyncio.to_thread(has_begun.wait, 10)
        for _ in range(3):
            fetching.cancel()
            await asyncio.sleep(0.02)
        assert not fetching.done()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        assert has_ended.is_set()


async def test_an_error_of_the_caller_is_the_caller_s(node: Memcached) -> None:
    stored = records(3)
    slots = [memoryview(bytearray(len(payload))) for _, payload in stored]

    def fail(index: int, _: RecordHeader) -> None:
        raise LookupError(index)

    async with _pool(node) as (pool, _):
        await pool.store_all(stored)
        with pytest.raises(ExceptionGroup) as raised:
            await pool.fetch([header.address for header, _ in stored], slots, fail)
        assert [error.args for error in raised.value.exceptions] == [(0,), (1,), (2,)]
        assert await pool.probe([stored[0][0].address]) == [True]


async def test_the_control_loop_runs_on_while_bytes_move_and_while_a_node_hangs(node: Memcached) -> None:
    stored = records(100, 1_000_000)
    async with _pool(node) as (pool, _):
        turns = 0
        storing = asyncio.create_task(pool.store_all(stored))
        while not storing.done():
            await asyncio.sleep(0)
            turns += 1
        assert storing.result() == ["stored"] * 100
        assert turns > 100
        node.stop()
        addresses = [header.address for header, _ in stored]
        probing = asyncio.create_task(pool.probe(addresses))
        for _ in range(100):
            await asyncio.sleep(0.001)
        assert not probing.done()
        node.resume()
        assert await probing == [True] * 100


async def test_closing_waits_for_what_is_under_way_and_later_calls_find_nothing(node: Memcached) -> None:
    stored = records(2)
    async with _pool(node, FAST) as (pool, metrics):
        await pool.store_all(stored)
        node.stop()
        probing = asyncio.create_task(pool.probe([stored[0][0].address]))
        await asyncio.sleep(0.05)
        start = time.monotonic()
        await pool.close()
        assert await probing == [False]
        assert time.monotonic() - start < 10 * FAST.operation_seconds
        assert operations(metrics, "probe") == {}, "what was counted of a node leaves with it"
        assert pool.off_reason == "no memcached nodes are configured"
        assert await pool.probe([stored[0][0].address]) == [False]
        assert await pool.store_all(stored) == ["off", "off"]
        node.resume()


async def test_why_it_is_off_is_known_at_once() -> None:
    pool = PoolThread(Metrics())
    try:
        assert pool.off_reason == "no memcached nodes are configured"
        pool.set_nodes(named("127.0.0.1:1"))
        assert pool.off_reason == "no engine has announced its namespace"
        with pytest.raises(ValueError, match="namespace: expected 32 bytes, got 16"):
            pool.set_namespace(NAMESPACE[:16])
        pool.set_namespace(NAMESPACE)
        assert (pool.off_reason, pool.enabled()) == ("", True)
        pool.set_problem("ca.crt: gone")
        assert (pool.off_reason, pool.enabled()) == ("ca.crt: gone", False)
        assert await pool.probe([b"x" * 32]) == [False]
    finally:
        await pool.close()
        await pool.close()
