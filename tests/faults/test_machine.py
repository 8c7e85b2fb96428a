"""A hypothesis state machine against the real sidecar process and a real memcached behind the fault proxy.

One thread, one call at a time, so that a failure shrinks to the few steps that it needs. The model knows what each
address must hold, which stores were acknowledged, and whether anything may have been lost.
"""

import contextlib
import hashlib
import os
import signal
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from pagoda_sidecar.client import EngineIdentity, TierClient, TierUnavailable
from tests.faults import universe
from tests.faults.calls import SLACK_SECONDS, SourceFailedError
from tests.faults.world import StuckError, World, running_world, wait_until
from tests.support.faults.mutations import FIELDS, KINDS, RESIGNED_FIELDS, Fault
from tests.support.memcached import needs_memcached

SECONDS = 1.0
READY_SECONDS = 60.0
NUM_CHAINS = 5
NUM_FLIPS = 70  # more than there are slots
FITS_BLOCKS = 30  # so many are kept, whatever the policy: less than half the arena


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    where = draw(st.sampled_from(sorted(KINDS)))
    kind = draw(st.sampled_from(KINDS[where]))
    fields = {"flip": FIELDS, "resigned": RESIGNED_FIELDS}.get(kind, ("",))
    return Fault(where, kind, draw(st.sampled_from(fields)), draw(st.integers(0, 2**16)))


class TierMachine(RuleBasedStateMachine):
    """Each example is an engine of a namespace of its own: what others left is nothing to it."""

    world: World
    num_examples = 0

    @initialize()
    def attach(self) -> None:
        TierMachine.num_examples += 1
        self.namespace = hashlib.sha256(b"%d %d" % (os.getpid(), TierMachine.num_examples)).digest()
        self.acknowledged: set[bytes] = set()
        self.tried: set[bytes] = set()
        self.is_clean = True  # nothing was done to anything: what was acknowledged must be there
        self.open_client()

    def open_client(self) -> None:
        """The lock is free as soon as the client before this one has let go of it."""
        identity = EngineIdentity(self.namespace, universe.PAYLOAD_BYTES, universe.BLOCK_TOKENS, ("m",), b"t" * 16)
        self.client = TierClient(self.world.sidecar.volume, identity)
        self.wait_attached()

    def wait_attached(self) -> None:
        wait_until(lambda: self.client.attached and not self.client.off_reason, READY_SECONDS, "the RAM tier")

    def payload(self, address: bytes) -> bytes:
        return hashlib.shake_128(self.namespace + address).digest(universe.PAYLOAD_BYTES)

    @contextlib.contextmanager
    def deadline(self) -> Iterator[None]:
        started = time.monotonic()
        with contextlib.suppress(TierUnavailable, SourceFailedError):
            yield
        assert time.monotonic() - started < SECONDS + SLACK_SECONDS, "a call outlived its deadline"

    @rule(number=st.integers(0, NUM_CHAINS - 1), length=st.integers(1, 10), fails_at=st.none() | st.integers(0, 9))
    def store(self, number: int, length: int, fails_at: int | None) -> None:
        addresses = universe.chain(number, number % universe.BRANCHES)[:length]

        def source(index: int, view: memoryview) -> None:
            if index == fails_at:
                view[:9] = b"half done"
                raise SourceFailedError
            view[:] = self.payload(addresses[index])

        with self.deadline():
            if fails_at is None or fails_at >= len(addresses):
                self.tried.update(addresses)
            result = self.client.store(universe.records(number, addresses), source, SECONDS)
            if not result.refused:
                self.acknowledged.update(addresses)

    @rule(number=st.integers(0, NUM_CHAINS - 1))
    def look_up(self, number: int) -> None:
        addresses = universe.chain(number, number % universe.BRANCHES)
        with self.deadline():
            parts = self.client.lookup(addresses, SECONDS)
            num_found = sum(part.count for part in parts)
            assert set(addresses[:num_found]) <= self.tried, "found what no store ever completed"
            self.hold_to_promise(addresses[:num_found], addresses)

    @rule(
        number=st.integers(0, NUM_CHAINS - 1),
        first=st.integers(0, 4),
        back_first=st.booleans(),
        cancel_after=st.none() | st.integers(0, 6),
    )
    def load(self, number: int, first: int, back_first: bool, cancel_after: int | None) -> None:
        addresses = universe.chain(number, number % universe.BRANCHES)
        got: dict[int, bytes] = {}
        arrived: list[int] = []

        def cancelled() -> bool:
            return cancel_after is not None and len(arrived) >= cancel_after

        with self.deadline():
            self.client.load(
                universe.root(number), addresses, first, len(addresses),
                lambda position, view: got.__setitem__(position, bytes(view)), SECONDS, cancelled,
                back_first=back_first, arrived=lambda position, source: arrived.append(position),
            )  # fmt: skip
            for position in arrived:
                assert got[position] == self.payload(addresses[position]), "wrong bytes"
                assert addresses[position] in self.tried, "loaded what no store ever completed"
            if cancel_after is None and not back_first and first == 0:
                self.hold_to_promise([addresses[position] for position in arrived], addresses)

    def hold_to_promise(self, found: object, addresses: tuple[bytes, ...]) -> None:
        """Nothing was done, and there is room: the longest acknowledged run is there."""
        if self.is_clean and len(self.tried) <= FITS_BLOCKS:
            promised = next((i for i, a in enumerate(addresses) if a not in self.acknowledged), len(addresses))
            assert len(list(found)) >= promised, "what was acknowledged is gone though nothing went wrong"  # type: ignore[call-overload]

    @rule()
    def hand_over(self) -> None:
        with self.deadline():
            self.client.hand_over(10**9, SECONDS)

    @rule(node=st.integers(0, 1), fault=faults())
    def damage_a_record_on_its_way(self, node: int, fault: Fault) -> None:
        self.is_clean = False
        self.world.proxies[node].arm(fault)

    @rule(field=st.sampled_from(["payload", "payload", "payload", *FIELDS]), bit=st.integers(0, 2**16))
    def flip_a_bit_in_every_slot(self, field: str, bit: int) -> None:
        self.is_clean = False
        num_done = len(self.world.sidecar.steering.done())
        self.world.sidecar.steering.flip([(field, bit, number / NUM_FLIPS) for number in range(NUM_FLIPS)])
        with contextlib.suppress(StuckError):  # there may be nothing to flip
            wait_until(lambda: len(self.world.sidecar.steering.done()) > num_done, 0.3, "the flips")

    @rule(node=st.integers(0, 1))
    def cut(self, node: int) -> None:
        self.world.proxies[node].cut()

    @precondition(lambda self: self.tried)
    @rule(who=st.sampled_from(["worker", "engine"]))
    def restart(self, who: str) -> None:
        """RAM is kept by either restart: what was acknowledged is there still."""
        if who == "worker":
            self.world.sidecar.signal_worker(signal.SIGKILL)
            wait_until(lambda: not self.client.attached, READY_SECONDS, "the engine to notice")
            self.wait_attached()
        else:
            self.client.close()
            self.open_client()

    def teardown(self) -> None:
        if not hasattr(self, "client"):
            return
        for proxy in self.world.proxies:
            proxy.disarm()
        self.world.sidecar.steering.clear()
        try:
            wait_until(self.is_settled, READY_SECONDS, "leases and quarantine zero")
        finally:
            self.client.close()
        assert not self.world.sidecar.steering.violations()

    def is_settled(self) -> bool:
        metrics = self.world.sidecar.metrics()
        return metrics.get("pagoda_leases") == 0 and metrics.get("pagoda_quarantined_slots") == 0


@needs_memcached
@pytest.mark.timeout(280)
def test_e3_e4_e22_no_order_of_calls_and_faults_gives_wrong_bytes_or_keeps_a_lease() -> None:
    with running_world() as world:
        TierMachine.world = world
        run_state_machine_as_test(
            TierMachine,
            settings=settings(
                max_examples=int(os.environ.get("PAGODA_FAULT_EXAMPLES", "8")),
                stateful_step_count=25,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
