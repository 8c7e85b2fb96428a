"""The service over gRPC in one process: who is refused, how, and what a repeat does."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
import xxhash

from pagoda_protocol.addresses import SELF_TEST_ADDRESS
from pagoda_protocol.digests import DIGEST_VERSION
from pagoda_protocol.tier import LOCK_NAME, PROTOCOL_VERSION
from pagoda_protocol.tier import tier_pb2 as pb
from pagoda_protocol.tier.tier_pb2_grpc import TierStub, add_TierServicer_to_server
from pagoda_runtime.metrics import Metrics
from pagoda_sidecar.arena.engine_lock import EngineLock
from pagoda_sidecar.counters import Counters
from pagoda_sidecar.service import TierService
from pagoda_sidecar.sidecar import Sidecar
from tests.sidecar.support import MEBIBYTE, NAMESPACE, ROOT, FakePool, chain


class Peer:
    """A raw gRPC peer of a sidecar in this process."""

    def __init__(self, sidecar: Sidecar, stub: TierStub) -> None:
        self.sidecar = sidecar
        self.stub = stub
        self.attachment = b""

    def request(self, **changes: object) -> pb.AttachRequest:
        request = pb.AttachRequest(
            protocol_version=PROTOCOL_VERSION,
            process_id=b"p" * 16,
            namespace=NAMESPACE,
            payload_bytes=5000,
            block_tokens=4,
            digest_version=DIGEST_VERSION,
            model_names=["m"],
            template_digest=b"t" * 16,
            address_self_test=SELF_TEST_ADDRESS,
        )
        for name, value in changes.items():
            setattr(request, name, value)
        return request

    async def attach(self, **changes: object) -> grpc.aio.UnaryStreamCall:
        """Attach and wait until the RAM tier is on."""
        call = self.stub.Attach(self.request(**changes))
        while True:
            event = await call.read()
            assert isinstance(event, pb.AttachEvent)
            self.attachment = event.attachment
            if not event.ram_off_reason:
                return call

    async def refused(self, **changes: object) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await self.stub.Attach(self.request(**changes)).read()
        return refused.value.code(), refused.value.details() or ""

    def reserve(self, request_id: str, num_blocks: int, seed: int = 0) -> pb.ReserveRequest:
        addresses = chain(num_blocks, seed)
        parents = [ROOT, *addresses]
        blocks = [
            pb.ReserveRequest.Block(address=address, parent=parents[i], index=i, tokens=4)
            for i, address in enumerate(addresses)
        ]
        return pb.ReserveRequest(attachment=self.attachment, request_id=request_id, blocks=blocks)


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    folder = Path(tempfile.mkdtemp(prefix="pagoda-test-", dir="/dev/shm"))
    sidecar = Sidecar(folder, MEBIBYTE, FakePool(), Counters(Metrics()))
    await sidecar.start()
    lock = EngineLock(folder / LOCK_NAME)
    server = grpc.aio.server()
    add_TierServicer_to_server(TierService(sidecar), server)
    server.add_insecure_port(f"unix:{folder}/s")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{folder}/s") as channel:
        yield Peer(sidecar, TierStub(channel))
    await server.stop(0.1)
    await sidecar.close()
    lock.release()
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"protocol_version": 9}, "protocol_version", ("speaks 9", f"sidecar {PROTOCOL_VERSION}")),
        ({"digest_version": 7}, "digest_version", ("speaks 7", f"sidecar {DIGEST_VERSION}")),
        ({"address_self_test": b"x" * 32}, "address_self_test", ("78787878", SELF_TEST_ADDRESS.hex())),
    ],
)
async def test_another_version_is_refused_by_name_and_counted(
    peer: Peer, changes: dict[str, object], reason: str, words: tuple[str, str]
) -> None:  # E17
    code, details = await peer.refused(**changes)
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert all(word in details for word in words)
    assert peer.sidecar.counters.attaches.value(result=reason) == 1
    assert peer.sidecar.counters.calls_refused.value(call="attach", reason=reason) == 1


async def test_malformed_requests_are_refused_and_counted(peer: Peer) -> None:
    assert (await peer.refused(namespace=b"short"))[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert (await peer.refused(payload_bytes=0))[0] is grpc.StatusCode.INVALID_ARGUMENT
    call = await peer.attach()
    a = peer.attachment
    for coroutine in (
        peer.stub.Lookup(pb.LookupRequest(attachment=a, addresses=[b"short"])),
        peer.stub.Reserve(pb.ReserveRequest(attachment=a, request_id="")),
        peer.stub.Reserve(pb.ReserveRequest(attachment=a, request_id="r", blocks=[pb.ReserveRequest.Block()])),
        peer.stub.Load(pb.LoadRequest(attachment=a, request_id="r", root=ROOT, first=1, stop=1)).read(),
        peer.stub.Commit(pb.CommitRequest(attachment=a, blocks=[pb.CommitRequest.Block(xxh3_128=b"1" * 16)])),
        peer.stub.Report(pb.ReportRequest(attachment=a, rows=[pb.ReportRequest.Row(digest=b"d")])),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await coroutine
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert peer.sidecar.counters.calls_refused.value(call="reserve", reason="malformed") == 2
    call.cancel()


async def test_one_live_engine_at_a_time_and_a_new_one_once_its_stream_has_ended(peer: Peer) -> None:
    call = await peer.attach()
    assert (await peer.refused(process_id=b"q" * 16))[0] is grpc.StatusCode.ALREADY_EXISTS
    call.cancel()
    while peer.sidecar.attachment is not None:  # noqa: ASYNC110 - the sidecar tells routers, not us
        await asyncio.sleep(0.01)
    (await peer.attach(process_id=b"q" * 16)).cancel()


async def test_the_same_process_may_attach_again_and_its_former_attachment_is_void(peer: Peer) -> None:
    await peer.attach()
    former = peer.attachment
    await peer.attach()
    assert peer.attachment != former
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await peer.stub.Lookup(pb.LookupRequest(attachment=former))
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_an_engine_without_the_lock_is_refused(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer.sidecar.keeper, "is_lock_free", lambda: True)
    code, details = await peer.refused()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "engine.lock" in details


async def test_a_repeated_reserve_gets_the_same_answer_and_a_settled_one_nothing(peer: Peer) -> None:
    await peer.attach()
    first = await peer.stub.Reserve(peer.reserve("r1", 4))
    assert await peer.stub.Reserve(peer.reserve("r1", 4)) == first
    assert len(first.slots) == 4
    # the settlement of a request that comes after it: whoever sent it has given up
    await peer.stub.Settle(pb.SettleRequest(attachment=peer.attachment, lease_ids=["r1", "r2"]))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await peer.stub.Reserve(peer.reserve("r2", 4))
    assert refused.value.code() is grpc.StatusCode.ABORTED
    assert peer.sidecar.tier is not None
    assert peer.sidecar.tier.index.num_free == peer.sidecar.tier.index.num_slots


async def test_a_lookup_that_may_not_wait_leaves_the_probe_to_its_own_deadline(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_ended = asyncio.Event()

    async def slow(addresses: list[bytes]) -> list[bool]:
        await asyncio.sleep(0.5)
        has_ended.set()
        return [True] * len(addresses)

    monkeypatch.setattr(peer.sidecar.pool, "probe", slow)
    await peer.attach()
    lookup = pb.LookupRequest(attachment=peer.attachment, addresses=chain(2))
    assert not (await peer.stub.Lookup(lookup, timeout=0.2)).parts
    assert not has_ended.is_set()
    async with asyncio.timeout(10):
        await has_ended.wait()


async def test_an_aborted_reserve_leaves_nothing_and_its_addresses_can_be_stored_anew(peer: Peer) -> None:
    await peer.attach()
    lent = (await peer.stub.Reserve(peer.reserve("r1", 4))).slots
    await peer.stub.Abort(pb.AbortRequest(attachment=peer.attachment, lease_id="r1"))
    assert peer.sidecar.tier is not None
    assert peer.sidecar.tier.index.num_free == peer.sidecar.tier.index.num_slots
    block = pb.CommitRequest.Block(slot=lent[0].slot, generation=lent[0].generation, xxh3_128=b"1" * 16)
    block.payload_bytes = 5000
    commit = pb.CommitRequest(attachment=peer.attachment, lease_id="r1", blocks=[block])
    assert list((await peer.stub.Commit(commit)).refused_slots) == [block.slot]
    assert len((await peer.stub.Reserve(peer.reserve("r2", 4))).slots) == 4


async def test_a_tier_that_is_off_shows_no_blocks_in_the_metrics(peer: Peer) -> None:
    await peer.attach()
    await peer.stub.Reserve(peer.reserve("r1", 4))
    peer.sidecar.update_gauges()
    assert peer.sidecar.counters.leases.value() == 1
    assert peer.sidecar.counters.bytes.value(tier="ram") == MEBIBYTE
    peer.sidecar.set_off_reason("pool secret: gone")
    while peer.sidecar.tier is not None:  # noqa: ASYNC110 - the sidecar tells engines, not us
        await asyncio.sleep(0.01)
    peer.sidecar.update_gauges()
    assert peer.sidecar.counters.leases.value() == 0
    assert peer.sidecar.counters.bytes.value(tier="ram") == 0


async def test_evictions_count_up_to_the_moment_a_tier_is_let_go(peer: Peer) -> None:
    await peer.attach()
    tier = peer.sidecar.tier
    assert tier is not None
    untouched = xxhash.xxh3_128_digest(bytes(5000))
    for seed in range(3):  # each takes half the arena
        lent = await peer.stub.Reserve(peer.reserve(f"r{seed}", tier.index.num_slots // 2, seed))
        commit = pb.CommitRequest(attachment=peer.attachment, lease_id=f"r{seed}")
        for slot in lent.slots:
            commit.blocks.add(slot=slot.slot, generation=slot.generation, xxh3_128=untouched, payload_bytes=5000)
        await peer.stub.Commit(commit)
    assert tier.index.num_evictions > 0
    peer.sidecar.set_off_reason("pool secret: gone")
    while peer.sidecar.tier is not None:  # noqa: ASYNC110 - the sidecar tells engines, not us
        await asyncio.sleep(0.01)
    assert peer.sidecar.counters.evictions.value(tier="ram") == tier.index.num_evictions


async def test_a_commit_of_something_else_than_was_lent_is_refused(peer: Peer) -> None:
    await peer.attach()
    lent = (await peer.stub.Reserve(peer.reserve("r1", 2))).slots
    block = pb.CommitRequest.Block(slot=lent[0].slot, generation=lent[0].generation, xxh3_128=b"1" * 16)
    block.payload_bytes = 5000
    stale, foreign = pb.CommitRequest.Block(), pb.CommitRequest.Block()
    stale.CopyFrom(block)
    stale.generation -= 1
    foreign.CopyFrom(block)
    foreign.slot = lent[1].slot
    commit = pb.CommitRequest(attachment=peer.attachment, lease_id="r1", blocks=[stale, foreign, block, block])
    assert list((await peer.stub.Commit(commit)).refused_slots) == [stale.slot, foreign.slot, block.slot]
    reply = await peer.stub.Lookup(pb.LookupRequest(attachment=peer.attachment, addresses=chain(2)))
    assert [part.count for part in reply.parts] == [1]


async def test_a_repeated_report_is_ignored(peer: Peer) -> None:
    await peer.attach()
    row = pb.ReportRequest.Row(digest=b"d" * 16, tokens=4, address=chain(1)[0])
    report = pb.ReportRequest(attachment=peer.attachment, sequence=1, rows=[row], device_added=chain(1))
    await peer.stub.Report(report)
    await peer.stub.Report(report)
    stored = peer.sidecar.table.get(b"d" * 16)
    assert stored is not None
    assert stored.heat == 1.0


async def test_a_use_reported_before_the_copy_was_committed_brings_the_block_to_the_pool(peer: Peer) -> None:
    await peer.attach()
    lent = (await peer.stub.Reserve(peer.reserve("r1", 1))).slots
    await peer.stub.Report(pb.ReportRequest(attachment=peer.attachment, sequence=1, touched=chain(1) * 2))
    commit = pb.CommitRequest(attachment=peer.attachment, lease_id="r1")
    digest = xxhash.xxh3_128_digest(peer.sidecar.tier.arena.payload(lent[0].slot)[:5000])
    commit.blocks.add(slot=lent[0].slot, generation=lent[0].generation, xxh3_128=digest, payload_bytes=5000)
    assert not (await peer.stub.Commit(commit)).refused_slots
    pool = peer.sidecar.pool
    assert isinstance(pool, FakePool)
    for _ in range(500):
        if pool.records:
            break
        await asyncio.sleep(0.01)
    assert list(pool.records) == chain(1)
