"""Whatever an engine says: an answer in time, a refusal that is counted, and a sidecar that goes on serving.

For ten seconds of random calls, or as long as PAGODA_FUZZ_SECONDS says. RAM, a disk below it and a pool in a dict.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagoda_protocol.tier import LOCK_NAME, SOCKET_NAME
from pagoda_protocol.tier import tier_pb2 as pb
from pagoda_protocol.tier.tier_pb2_grpc import TierStub, add_TierServicer_to_server
from pagoda_runtime.metrics import Metrics
from pagoda_sidecar.arena.engine_lock import EngineLock
from pagoda_sidecar.client import TierClient
from pagoda_sidecar.counters import Counters
from pagoda_sidecar.disk.chains import Chains
from pagoda_sidecar.disk.tier import DiskTier
from pagoda_sidecar.intake import HARD_LIMIT_BYTES, MAX_MESSAGE_BYTES, SERVER_OPTIONS, Intake
from pagoda_sidecar.requests import MAX_ADDRESSES
from pagoda_sidecar.service import TierService
from pagoda_sidecar.sidecar import Sidecar
from tests.sidecar import fuzz
from tests.sidecar.support import MEBIBYTE, FakePool, chain, identity, load, store, usable, wait_until

FUZZ_SECONDS = float(os.environ.get("PAGODA_FUZZ_SECONDS", "10"))
HANG_SECONDS = 20.0
RAM_BYTES = 24_576 + 24 * 8192  # slots for half of what the peer knows and a lease of eight
DISK_BYTES = MEBIBYTE
METHOD = "/pagoda.tier.v1.Tier/"
REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
}


class CountingSidecar(Sidecar):
    """Knows how many calls were refused, whatever the reason."""

    num_refusals = 0

    def count_refusal(self, call: str, reason: str) -> None:
        self.num_refusals += 1
        super().count_refusal(call, reason)


class Service:
    """A sidecar's service on a loop of its own, behind a real socket."""

    def __init__(self, folder: Path) -> None:
        self.volume = folder
        self.num_from_disk = self.num_peers = 0
        (folder / "disk").mkdir()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.sidecar, self._server = self.run(self._start())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run `work` on the service's loop; a loop that stands still is a failure."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(HANG_SECONDS)

    def check_integrity(self) -> None:
        """Assert what must hold between any two calls."""

        async def check() -> None:
            if self.sidecar.tier is not None:
                self.sidecar.tier.check_integrity()
            self.sidecar.disk.check_integrity()

        self.run(check())

    def num_refused(self, call: str, reason: str) -> float:
        return self.sidecar.counters.calls_refused.value(call=call, reason=reason)

    def close(self) -> None:
        async def end() -> None:
            await self._server.stop(0.1)
            await self.sidecar.close()

        self.run(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(HANG_SECONDS)
        self.loop.close()

    async def _start(self) -> tuple[CountingSidecar, grpc.aio.Server]:
        counters = Counters(Metrics())
        disk = DiskTier(self.volume / "disk", DISK_BYTES, Chains(), counters.disk_damage)
        sidecar = CountingSidecar(self.volume, RAM_BYTES, FakePool(), counters, disk)
        await sidecar.start()
        server = grpc.aio.server(interceptors=[Intake(sidecar.count_refusal)], options=SERVER_OPTIONS)
        add_TierServicer_to_server(TierService(sidecar), server)
        server.add_insecure_port(f"unix:{self.volume}/{SOCKET_NAME}")
        await server.start()
        return sidecar, server


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    folder = Path(tempfile.mkdtemp(prefix="pagoda-test-", dir="/dev/shm"))
    running = Service(folder)
    yield running
    running.close()
    shutil.rmtree(folder)


class Peer:
    """Sends bytes, and keeps what it was granted."""

    def __init__(self, service: Service) -> None:
        self.service = service
        service.num_peers += 1
        self.story = fuzz.Story(service.num_peers)
        self._lock = EngineLock(service.volume / LOCK_NAME)
        self._channel = grpc.insecure_channel(f"unix:{service.volume}/{SOCKET_NAME}", SERVER_OPTIONS)
        self._events = TierStub(self._channel).Attach(fuzz.attach_request())
        for event in self._events:
            self.story.attachment = event.attachment
            if not event.ram_off_reason:
                break

    def send(self, name: str, data: bytes) -> grpc.StatusCode:
        """Send one message; return the status it is answered with."""
        make: Callable[..., Any] = self._channel.unary_stream if name == "Load" else self._channel.unary_unary
        call = make(METHOD + name, request_serializer=None, response_deserializer=None)
        try:
            answer = call(data, timeout=HANG_SECONDS)
            self._keep(name, list(answer) if name == "Load" else answer)
        except grpc.RpcError as error:
            return error.code()  # type: ignore[no-any-return]  # untyped
        return grpc.StatusCode.OK

    def attach(self, data: bytes) -> grpc.StatusCode:
        """Try to attach beside the living attachment; it must not be let in."""
        call = self._channel.unary_stream(METHOD + "Attach", request_serializer=None, response_deserializer=None)
        answer = call(data, timeout=HANG_SECONDS)
        try:
            next(answer)
        except grpc.RpcError as error:
            return error.code()  # type: ignore[no-any-return]  # untyped
        answer.cancel()
        return grpc.StatusCode.OK

    def close(self) -> None:
        self._events.cancel()
        self._channel.close()
        wait_until(lambda: self.service.sidecar.attachment is None, what="the end of the attachment")
        self._lock.release()

    def _keep(self, name: str, answer: Any) -> None:
        if name == "Reserve":
            reply = pb.ReserveReply.FromString(answer)
            self.story.slots += [(reply.lease_id, slot.slot, slot.generation) for slot in reply.slots]
        elif name == "Load":
            ready = [pb.LoadEvent.FromString(event).ready for event in answer]
            self.service.num_from_disk += sum(one.source == pb.TIER_NAME_DISK for one in ready)


def fill_disk(service: Service) -> None:
    """Leave what the peer may ask for on disk, and RAM full of other things."""
    disk = service.sidecar.disk
    with contextlib.closing(TierClient(service.volume, identity(payload_bytes=fuzz.PAYLOAD_BYTES))) as client:
        wait_until(lambda: usable(client) and not client.disk_off_reason, what="the tiers")
        for addresses in [*fuzz.CHAINS, *(chain(6, 90 + number) for number in range(4))]:
            assert store(client, addresses, 10.0).stored == len(addresses)
            client.report([], [], [], [], None, 5.0, parked=addresses[-1:])
            wait_until(lambda last=addresses[-1]: disk.has(last), what="a chain on disk")  # type: ignore[misc]
    wait_until(lambda: service.sidecar.attachment is None, what="the end of the attachment")


def is_served_well(service: Service, seed: int) -> None:
    """Assert that an engine that behaves is served as if nothing had been, and that nothing is left held."""
    addresses = chain(8, seed)
    with contextlib.closing(TierClient(service.volume, identity(payload_bytes=fuzz.PAYLOAD_BYTES))) as client:
        wait_until(lambda: usable(client), what="the RAM tier")
        assert store(client, addresses, 10.0).stored == 8
        assert load(client, addresses, seconds=10.0).sources == ["ram"] * 8
    tier = service.sidecar.tier
    assert tier is not None
    wait_until(lambda: service.sidecar.attachment is None, what="the end of the attachment")

    def nothing_is_held() -> bool:
        async def reclaim() -> bool:
            tier._reclaim()  # as the next allocation would
            return len(tier.leases) == 0 and all(not block.references for block in tier.index)

        return bool(service.run(reclaim()))

    wait_until(nothing_is_held, what="leases to be gone")
    service.check_integrity()


@pytest.mark.timeout(FUZZ_SECONDS + 300)
def test_anything_said_in_any_order_is_answered_and_leaves_the_sidecar_whole(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "pagoda_sidecar")
    statuses: dict[grpc.StatusCode, int] = {}
    fill_disk(service)
    end = time.monotonic() + FUZZ_SECONDS

    @settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def tell(data: st.DataObject) -> None:
        peer = Peer(service)
        try:
            for _ in range(data.draw(st.integers(1, 25))):
                if data.draw(st.integers(1, 25)) == 1:
                    status = peer.attach(data.draw(fuzz.wrong_attaches()))
                    assert status in REFUSALS, status
                else:
                    name, message = data.draw(fuzz.messages(peer.story))
                    refused_before = service.sidecar.num_refusals
                    status = peer.send(name, message)
                    peer.story.sent.append((name, message))
                    assert status is grpc.StatusCode.OK or status in REFUSALS, (name, status)
                    is_counted = service.sidecar.num_refusals > refused_before
                    assert status is grpc.StatusCode.OK or is_counted, (name, status)
                statuses[status] = statuses.get(status, 0) + 1
                service.check_integrity()
        finally:
            peer.close()
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR], caplog.text
        caplog.clear()

    while time.monotonic() < end:
        tell()
    assert statuses[grpc.StatusCode.OK] > 100, "not all is refused"
    assert set(statuses) - {grpc.StatusCode.OK}
    assert service.num_from_disk > 0, "the disk was never read"
    is_served_well(service, seed=77)


def test_what_is_no_message_or_too_large_is_refused_and_counted(service: Service) -> None:
    peer = Peer(service)
    try:
        for name, label in (("Lookup", "lookup"), ("Load", "load"), ("HandOver", "hand_over")):
            before = service.num_refused(label, "unreadable")
            assert peer.send(name, b"\xff" * 40) is grpc.StatusCode.INVALID_ARGUMENT
            assert service.num_refused(label, "unreadable") == before + 1
        assert peer.send("Report", bytes(MAX_MESSAGE_BYTES + 1)) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert service.num_refused("report", "oversized") == 1
        assert peer.send("Report", bytes(HARD_LIMIT_BYTES + 1)) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert peer.send("Escape", b"") is grpc.StatusCode.UNIMPLEMENTED
        assert service.num_refused("unknown", "method") == 1
        many = pb.LookupRequest(attachment=peer.story.attachment, addresses=[b"a" * 32] * (MAX_ADDRESSES + 1))
        assert peer.send("Lookup", many.SerializeToString()) is grpc.StatusCode.INVALID_ARGUMENT
    finally:
        peer.close()
    is_served_well(service, seed=78)


def test_a_grant_is_repeated_while_it_holds_and_never_after_its_end(service: Service) -> None:
    peer = Peer(service)
    try:
        addresses = chain(2, 79)
        reserve = pb.ReserveRequest(attachment=peer.story.attachment, request_id="once")
        for index, address in enumerate(addresses):
            reserve.blocks.add(address=address, parent=[b"r" * 32, *addresses][index], index=index, tokens=4)
        data = reserve.SerializeToString()
        assert [peer.send("Reserve", data) for _ in range(2)] == [grpc.StatusCode.OK] * 2
        assert peer.story.slots[:2] == peer.story.slots[2:], "the same slots"
        settle = pb.SettleRequest(attachment=peer.story.attachment, lease_ids=["once"]).SerializeToString()
        assert [peer.send("Settle", settle) for _ in range(2)] == [grpc.StatusCode.OK] * 2
        before = service.num_refused("reserve", "settled")
        assert peer.send("Reserve", data) is grpc.StatusCode.ABORTED, "its slots may be another's by now"
        assert service.num_refused("reserve", "settled") == before + 1
    finally:
        peer.close()


def test_chains_that_bite_their_tails_keep_nobody_busy_for_ever(service: Service) -> None:
    peer = Peer(service)
    try:
        one, other = chain(2, 80)
        (alone,) = chain(1, 82)
        attachment = peer.story.attachment
        reserve = pb.ReserveRequest(attachment=attachment, request_id="ring")
        reserve.blocks.add(address=one, parent=other, index=1, tokens=4)
        reserve.blocks.add(address=other, parent=one, index=1, tokens=4)
        reserve.blocks.add(address=alone, parent=alone, index=1, tokens=4)
        assert peer.send("Reserve", reserve.SerializeToString()) is grpc.StatusCode.OK
        commit = pb.CommitRequest(attachment=attachment, lease_id="ring")
        for _, slot, generation in peer.story.slots:
            commit.blocks.add(slot=slot, generation=generation, xxh3_128=b"x" * 16, payload_bytes=fuzz.PAYLOAD_BYTES)
        assert peer.send("Commit", commit.SerializeToString()) is grpc.StatusCode.OK
        report = pb.ReportRequest(attachment=attachment, sequence=1, touched=[one, other, alone], parked=[one, other])
        assert peer.send("Report", report.SerializeToString()) is grpc.StatusCode.OK
    finally:
        peer.close()
    is_served_well(service, seed=81)
