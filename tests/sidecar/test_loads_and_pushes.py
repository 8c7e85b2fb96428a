"""Loads and pushes on a real arena with a pool in a dict."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest
import xxhash

from pagoda_protocol.records import unpack_header
from pagoda_runtime.metrics import Metrics
from pagoda_sidecar import loads, pushes
from pagoda_sidecar.arena.file import allocate
from pagoda_sidecar.arena.slots.grants import Holder, NewBlock, Run
from pagoda_sidecar.arena.tier import RamTier
from pagoda_sidecar.counters import Counters
from pagoda_sidecar.disk.chains import Chains
from pagoda_sidecar.disk.tier import DiskTier
from pagoda_sidecar.loads import LoadJob, Loads
from pagoda_sidecar.pushes import KNOWN_SECONDS, Pusher
from pagoda_sidecar.verifier import Verifier
from tests.sidecar.support import BLOCK_TOKENS, NAMESPACE, ROOT, FakePool, chain, payload

SIZE = 1000
HOLDER = Holder(b"a" * 16)


class Pod:
    def __init__(self, folder: Path, pool: FakePool) -> None:
        self.pool = pool
        self.counters = Counters(Metrics())
        arena = allocate(folder / "arena", 20_480 + 4096 + 12 * 4096, lambda done: None, lambda: False)
        arena.fix_geometry(SIZE)
        self.tier = RamTier(arena, NAMESPACE, 0, asyncio.get_running_loop().time, lambda: False)
        self.verifier = Verifier(self.counters)
        self.now = 0.0
        self.numbers = itertools.count()
        self.pusher = Pusher(pool, self.verifier, lambda: self.now)
        self.loads = Loads(pool, DiskTier(None, 0, Chains()), self.verifier, self.pusher)

    def store(self, addresses: Sequence[bytes]) -> None:
        parents = [ROOT, *addresses]
        blocks = [NewBlock(address, parents[i], i, BLOCK_TOKENS, 0) for i, address in enumerate(addresses)]
        for position, block in self.tier.reserve("store", HOLDER, blocks).slots:
            self.tier.arena.payload(block.slot)[:] = payload(addresses[position], SIZE)
            digest = xxhash.xxh3_128_digest(payload(addresses[position], SIZE))
            self.tier.commit("store", HOLDER.attachment, block.slot, block.generation, digest)
        self.tier.settle("store")

    def start(self, name: str, addresses: Sequence[bytes], is_back_first: bool = False) -> LoadJob:
        return self.loads.start(self.tier, name, HOLDER, Run(addresses, ROOT, 0, len(addresses)), is_back_first)

    async def close(self) -> None:
        await self.loads.cancel_all()
        await self.pusher.cancel()
        self.verifier.close()
        self.tier.check_integrity()
        self.tier.arena.close()


@pytest.fixture
async def pods(tmp_path: Path) -> AsyncIterator[tuple[Pod, Pod]]:
    pool = FakePool()
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    two = Pod(tmp_path / "1", pool), Pod(tmp_path / "2", pool)
    yield two
    for pod in two:
        await pod.close()


async def events(job: LoadJob) -> list[tuple[str, int]]:
    """Return what a job said: ("ram" | "pool" | reason of a miss, position), after its grant."""
    said = []
    async with aclosing(job.follow()) as stream:
        async for event in stream:
            if event.HasField("ready"):
                said.append((("", "", "ram", "", "pool")[event.ready.source], event.ready.position))
            elif event.HasField("missed"):
                said.append((event.missed.reason, event.missed.position))
    return said


async def drain(pod: Pod) -> None:
    result = await pod.pusher.push_all(pod.tier, 2**40, 10.0)
    assert result.num_left == 0


async def test_pool_blocks_land_in_slots_and_are_ram_afterwards(pods: tuple[Pod, Pod]) -> None:
    one, other = pods
    addresses = chain(5)
    one.store(addresses)
    await drain(one)
    other.store(addresses[:2])
    assert await events(other.start("l", addresses)) == [("ram", 0), ("ram", 1), ("pool", 2), ("pool", 3), ("pool", 4)]
    other.tier.settle("l")
    assert await events(other.start("m", addresses, is_back_first=True)) == [("ram", i) for i in (4, 3, 2, 1, 0)]
    for address in addresses:
        block = other.tier.index.sealed(address)
        assert block is not None
        assert bytes(other.tier.arena.payload(block.slot)) == payload(address, SIZE)
        assert block.tokens == BLOCK_TOKENS


async def test_the_same_request_again_sees_the_same_events_and_one_lease(pods: tuple[Pod, Pod]) -> None:
    one, _ = pods
    one.store(chain(3))
    job = one.start("l", chain(3))
    first = await events(job)
    again = one.loads.find("l")
    assert again is job
    assert await events(job) == first
    assert len(one.tier.leases) == 1


async def test_two_loads_of_one_chain_fetch_it_once(pods: tuple[Pod, Pod]) -> None:
    one, other = pods
    addresses = chain(4)
    one.store(addresses)
    await drain(one)
    one.pool.delay = 0.01
    said = await asyncio.gather(events(other.start("l", addresses)), events(other.start("m", addresses)))
    assert said[0] == said[1] == [("pool", i) for i in range(4)]
    assert one.pool.num_fetched == 4


async def test_a_block_that_another_load_fetches_is_told_of_as_it_lands(pods: tuple[Pod, Pod]) -> None:
    """Not after all of our own: who loads from the end waits for the end first."""
    one, other = pods
    addresses = chain(6)
    one.store(addresses)
    await drain(one)
    other.pool.delay = 0.02
    await_first = other.loads.start(other.tier, "a", HOLDER, Run(addresses, ROOT, 5, 6), False)
    said = await events(other.start("b", addresses, is_back_first=True))
    assert said.index(("pool", 5)) < len(said) - 1
    assert sorted(position for _, position in said) == list(range(6))
    assert await events(await_first) == [("pool", 5)]


async def test_what_does_not_come_is_missed_and_its_slot_is_free_after_the_settlement(pods: tuple[Pod, Pod]) -> None:
    one, _ = pods
    addresses = chain(4)
    one.store(addresses[:1])
    num_free = one.tier.index.num_free
    assert await events(one.start("l", addresses)) == [("ram", 0), ("miss", 1), ("miss", 2), ("miss", 3)]
    one.tier.settle("l")
    assert one.tier.index.num_free == num_free


async def test_a_load_nobody_follows_any_more_stops_fetching(pods: tuple[Pod, Pod]) -> None:
    one, other = pods
    addresses = chain(5)
    one.store(addresses)
    await drain(one)
    one.pool.delay = 0.02
    job = other.start("l", addresses)
    async with aclosing(job.follow()) as stream:
        async for event in stream:
            if event.HasField("ready"):
                break
    assert job.task is not None
    await asyncio.wait([job.task])
    assert one.pool.num_fetched < 5
    other.tier.settle("l")
    other.tier.check_integrity()
    assert all(block.references == 0 and block.is_sealed for block in other.tier.index)


async def test_a_load_cancelled_before_it_began_leaks_nothing(pods: tuple[Pod, Pod]) -> None:
    one, _ = pods
    one.start("l", chain(5))
    await one.loads.cancel_all()
    one.tier.settle("l")
    assert one.tier.index.num_free == one.tier.index.num_slots


async def test_no_running_load_is_forgotten_and_of_ended_ones_the_oldest(
    pods: tuple[Pod, Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loads, "MAX_REMEMBERED", 2)
    one, other = pods
    one.store(chain(2))
    await drain(one)
    other.pool.delay = 60.0
    running = other.start("running", chain(2))
    other.store(chain(1, seed=1))
    for name in ("1", "2", "3"):
        assert await events(other.start(name, chain(1, seed=1))) == [("ram", 0)]
    assert other.loads.find("running") is running
    assert other.loads.find("1") is None
    assert other.loads.find("2") is not None
    other.loads.cancel("running")
    assert running.task is not None
    await asyncio.wait({running.task}, timeout=10)
    assert running.task.cancelled()


async def test_a_foreign_record_under_our_address_is_a_miss(pods: tuple[Pod, Pod]) -> None:
    one, other = pods
    addresses = chain(2)
    one.store(addresses)
    await drain(one)
    one.pool.records[addresses[1]] = one.pool.records[addresses[0]]
    assert await events(other.start("l", addresses)) == [("pool", 0), ("integrity", 1)]


async def test_a_grant_is_half_the_arena_at_most(pods: tuple[Pod, Pod]) -> None:
    one, _ = pods
    said = await events(one.start("l", chain(12)))
    assert len(said) == one.tier.index.num_slots // 2


async def test_a_block_goes_to_the_pool_when_it_is_seen_twice_and_takes_its_chain_along(pods: tuple[Pod, Pod]) -> None:
    one, _ = pods
    touched, loaded = chain(3), chain(3, seed=1)
    one.store(touched)
    one.store(loaded)
    last = touched[-1]
    one.pusher.touched(one.tier, last)  # its own request ended here
    await asyncio.sleep(0.05)
    assert one.pool.records == {}
    one.pusher.touched(one.tier, last)
    await events(one.start("l", loaded))
    for _ in range(100):
        await asyncio.sleep(0.01)
        if len(one.pool.records) == 6:
            break
    assert set(one.pool.records) == {*touched, *loaded}


async def test_uses_reported_before_a_block_has_arrived_count_when_it_does(pods: tuple[Pod, Pod]) -> None:
    one, _ = pods
    addresses = chain(3)
    for _ in range(2):
        one.pusher.touched(one.tier, addresses[-1])
    one.store(addresses)
    last = one.tier.index.sealed(addresses[-1])
    assert last is not None
    one.pusher.sealed(one.tier, last)
    for _ in range(100):
        await asyncio.sleep(0.01)
        if len(one.pool.records) == 3:
            break
    assert set(one.pool.records) == set(addresses)


async def pushed(pod: Pod, addresses: Sequence[bytes]) -> bool:
    """Use a chain once more; return whether the pool has all of it soon after."""
    await events(pod.start(f"use {next(pod.numbers)}", addresses))
    for _ in range(20):
        await asyncio.sleep(0.01)
        if set(addresses) <= set(pod.pool.records):
            return True
    return False


async def test_what_the_pool_has_lost_is_pushed_again_when_that_may_be_known(pods: tuple[Pod, Pod]) -> None:
    one, _ = pods
    one.store(chain(3))
    assert await pushed(one, chain(3))
    one.pool.records.clear()  # its node needed room
    one.now += KNOWN_SECONDS / 2
    assert not await pushed(one, chain(3)), "asked for again all the time"
    one.now += KNOWN_SECONDS / 2
    assert await pushed(one, chain(3))
    one.pool.records.clear()
    one.pool.num_upheavals += 1  # a node is another one
    assert await pushed(one, chain(3))


async def test_what_came_from_a_pool_that_lost_it_is_pushed_again(pods: tuple[Pod, Pod]) -> None:
    one, other = pods
    one.store(chain(3))
    await drain(one)
    assert await events(other.start("l", chain(3))) == [("pool", 0), ("pool", 1), ("pool", 2)]
    other.pool.records.clear()
    assert not await pushed(other, chain(3))
    other.pool.num_upheavals += 1
    assert await pushed(other, chain(3))


async def test_an_offer_that_finds_the_queue_full_is_counted_and_comes_again(
    pods: tuple[Pod, Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = pods
    monkeypatch.setattr("pagoda_sidecar.pushes.MAX_QUEUED", 2)
    one.store(chain(5))
    await events(one.start("l", chain(5)))
    assert one.counters.pushes_dropped.value(reason="queue_full") == 3
    assert await pushed(one, chain(5)) or await pushed(one, chain(5))
    assert one.counters.pushes_dropped.value(reason="late") == 0


async def test_blocks_that_a_hand_over_has_no_time_for_are_counted_as_late(
    pods: tuple[Pod, Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = pods
    monkeypatch.setattr("pagoda_sidecar.pushes.NUM_SENDERS", 1)
    monkeypatch.setattr("pagoda_sidecar.pushes.SEND_BATCH", 2)  # of which none is acknowledged in time
    one.store(chain(6))
    one.pool.delay = 1.0
    result = await one.pusher.push_all(one.tier, 2**40, 0.1)
    assert (result.num_blocks, result.num_left) == (0, 6)
    assert one.counters.pushes_dropped.value(reason="late") == 6
    assert one.counters.pushes_dropped.value(reason="queue_full") == 0


async def test_a_damaged_block_is_dropped_and_never_spreads(pods: tuple[Pod, Pod]) -> None:
    one, _ = pods
    one.store(chain(4))
    block = one.tier.index.sealed(chain(4)[2])
    assert block is not None
    one.tier.arena.payload(block.slot)[5] ^= 1
    result = await one.pusher.push_all(one.tier, 2**40, 10.0)
    assert (result.num_blocks, result.num_left) == (3, 1)
    assert chain(4)[2] not in one.pool.records
    assert one.tier.index.sealed(chain(4)[2]) is None
    assert one.counters.integrity_failures.value(tier="ram", reason="checksum") == 1


async def test_a_hand_over_keeps_its_budget_and_begins_with_the_hottest_session(pods: tuple[Pod, Pod]) -> None:
    one, _ = pods
    cold, hot = chain(3), chain(3, seed=1)
    one.store(hot)
    one.store(cold)
    for _ in range(3):
        block = one.tier.index.sealed(hot[-1])
        assert block is not None
        one.tier.index.use(block)
    result = await one.pusher.push_all(one.tier, 4 * SIZE + 1, 10.0)
    assert (result.num_blocks, result.num_bytes, result.num_left) == (4, 4 * SIZE, 2)
    assert set(one.pool.records) == {*hot, cold[0]}
    assert unpack_header(one.tier._headers.record(0)).payload_bytes == SIZE


async def test_a_hand_over_pushes_all_and_counts_what_several_senders_sent(
    pods: tuple[Pod, Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushes, "SEND_BATCH", 1)
    one, _ = pods
    one.store(chain(6))
    result = await one.pusher.push_all(one.tier, 2**40, 10.0)
    assert (result.num_blocks, result.num_bytes, result.num_left) == (6, 6 * SIZE, 0)
    assert list(one.pool.records) == chain(6), "each chain from its front"


async def test_a_store_that_was_not_acknowledged_is_not_believed(pods: tuple[Pod, Pod]) -> None:
    one, _ = pods
    one.store(chain(2))
    one.pool.accepts = False
    result = await one.pusher.push_all(one.tier, 2**40, 10.0)
    assert (result.num_blocks, result.num_left) == (0, 2)
    assert not any(block.pool_mark for block in one.tier.index)


async def test_a_block_that_two_doubt_gives_its_slot_back_once(pods: tuple[Pod, Pod]) -> None:
    """The second hash comes when the slot is free or somebody else's already."""
    pod, _ = pods
    pod.store(chain(1))
    block = pod.tier.index.sealed(chain(1)[0])
    assert block is not None
    pod.tier.arena.payload(block.slot)[5] ^= 1
    num_free = pod.tier.index.num_free
    assert await pod.verifier.check(pod.tier, [block]) == [False]
    assert await pod.verifier.check(pod.tier, [block]) == [False]
    assert pod.tier.index.num_free == num_free + 1
    pod.tier.check_integrity()
