"""What an engine shows of itself: a token, and a block of its own through every tier. On tiers that fit the screen."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from pagoda_engine.core.request import NewRequest, TokenEvent, TokenSink
from pagoda_engine.core.tiers import BlockRecord, LoadResult, Part, StoreResult, TierUnavailable
from pagoda_engine.serving import proof
from pagoda_engine.serving.errors import StartError
from pagoda_engine.serving.proof import Prover, Scope
from pagoda_protocol import metrics as names
from pagoda_runtime.metrics import Metrics
from tests.engine.core.bench import Bench

SCOPE = Scope(root=b"p" * 32, tenant_tag=9, block_tokens=16, payload_bytes=1000)


class OneToken:
    """An engine that generates what it is told to."""

    def __init__(self, *events: TokenEvent) -> None:
        self.events = events or (TokenEvent("r", (5,), "length"),)
        self.requests: list[NewRequest] = []

    def submit(self, request: NewRequest, sink: TokenSink) -> None:
        self.requests.append(request)
        for event in self.events:
            sink(event)

    def abort(self, request_id: str) -> None:
        self.events = (TokenEvent(request_id, (), "abort"),)


class Tiers:
    """A client over dicts. `faults[tier]` is what its place, lookup or load does instead of working."""

    def __init__(self, *tiers: str) -> None:
        self.on_change: Callable[[], None] | None = None
        self.tiers: tuple[str, ...] | None = tiers
        self.attached = self.has_ram = True
        self.off_reason, self.state = "", "first"
        self.faults: dict[str, str] = {}
        self.held: dict[bytes, tuple[str, bytes]] = {}  # by address: where, what
        self.seen: list[bytes] = []  # addresses

    def store(
        self, blocks: Sequence[BlockRecord], source: Callable[[int, memoryview], None], timeout_seconds: float
    ) -> StoreResult:
        if self.faults.get("ram") == "full":
            return StoreResult(0, 0, 1)
        slot = bytearray(SCOPE.payload_bytes)
        source(0, memoryview(slot))
        assert blocks[0].parent == SCOPE.root
        self.held[blocks[0].address] = ("ram", bytes(slot))
        self.seen.append(blocks[0].address)
        return StoreResult(1, 0, 0)

    def place(self, address: bytes, tier: str | None, timeout_seconds: float) -> str:
        if tier is None:
            self.held.pop(address, None)
            return ""
        fault = self.faults.get(tier)
        if fault == "hang":
            time.sleep(timeout_seconds)
            raise TierUnavailable("deadline")
        if fault == "refuse":
            return "not stored: refused"
        if fault != "ignore":
            self.held[address] = (tier, self.held[address][1])
        return ""

    def lookup(self, addresses: Sequence[bytes], timeout_seconds: float, *, is_proof: bool) -> list[Part]:
        assert is_proof
        where = self.held[addresses[0]][0]
        return [] if self.faults.get(where) == "lose" else [Part(where, 0, 1, 0.0)]

    def load(
        self, root: bytes, addresses: Sequence[bytes], first: int, stop: int, sink: Callable[[int, memoryview], None],
        timeout_seconds: float, cancelled: Callable[[], bool], *, is_proof: bool,
    ) -> LoadResult:  # fmt: skip
        assert is_proof
        tier, payload = self.held[addresses[0]]
        if self.faults.get(tier) == "miss":
            return LoadResult([], "miss")
        sink(0, memoryview(payload[::-1] if self.faults.get(tier) == "other" else payload))
        return LoadResult([tier], None)


def prover_of(tiers: Tiers | None, engine: OneToken | None = None, metrics: Metrics | None = None) -> Prover:
    counter = (metrics or Metrics()).counter(names.TIER_PROOFS, "Proofs.", ("tier", "result"))
    return Prover(engine or OneToken(), tiers, SCOPE, counter)


def results(prover: Prover) -> tuple[str, ...]:
    return tuple(prover.describe()["tiers"].values())


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Prover], None]]:
    """Run the threads of provers, in a hurry."""
    monkeypatch.setattr(proof, "FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(proof, "LAST_RETRY_SECONDS", 0.02)
    started: list[Prover] = []

    def watch(prover: Prover) -> None:
        started.append(prover)
        prover.watch()

    yield watch
    for prover in started:
        prover.stop()


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.005)


def test_every_configured_tier_is_proven_by_a_new_block_and_nothing_stays() -> None:
    tiers, engine, metrics = Tiers("ram", "disk", "pool"), OneToken(), Metrics()
    prover = prover_of(tiers, engine, metrics)
    assert prover.describe()["generated"] is False
    prover.prove()
    tiers_ok = {"ram": "ok", "disk": "ok", "pool": "ok"}
    assert prover.describe() == {"generated": True, "tiers": tiers_ok, "state": "first"}
    assert tiers.held == {}
    assert len(set(tiers.seen)) == 3, "nothing that was there before can pass for it"
    (request,) = engine.requests
    assert request.root == SCOPE.root
    assert request.is_proof
    assert len(request.prompt) < SCOPE.block_tokens, "no block of it is ever full, so none is stored"
    assert b'pagoda_tier_proofs_total{result="ok",tier="pool"} 1.0' in metrics.exposition()


def test_a_tier_that_is_not_configured_is_none() -> None:
    ram_alone, alone = prover_of(Tiers("ram")), prover_of(None)
    ram_alone.prove()
    alone.prove()
    assert results(ram_alone) == ("ok", "none", "none")
    assert results(alone) == ("none", "none", "none")
    assert alone.describe()["generated"] is True


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("refuse", "failed: not stored: refused"),
        ("ignore", "failed: what was stored is to be found ram"),
        ("lose", "failed: what was stored is to be found nowhere"),
        ("miss", "failed: what was stored does not come back: miss"),
        ("other", "failed: other bytes came back than were stored"),
        ("hang", "failed: deadline"),
    ],
)
def test_a_tier_that_does_not_work_is_said_and_keeps_nobody_from_serving(fault: str, says: str) -> None:
    tiers = Tiers("ram", "disk", "pool")
    tiers.faults["disk"] = fault
    prover = prover_of(tiers)
    prover.prove()
    assert results(prover) == ("ok", says, "ok")
    assert tiers.held == {}


def test_tiers_that_hang_delay_an_engine_by_two_seconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "TIER_SECONDS", 2.0)  # so that two of them are far over what all may take
    tiers = Tiers("ram", "disk", "pool")
    tiers.faults |= {"disk": "hang", "pool": "hang"}
    prover = prover_of(tiers)
    began = time.monotonic()
    prover.prove()
    assert time.monotonic() - began < proof.PROOF_SECONDS + 0.5
    assert results(prover) == ("ok", "failed: deadline", "failed: deadline")


def test_without_a_sidecar_each_tier_fails_with_the_reason_after_a_moment() -> None:
    tiers = Tiers()
    tiers.tiers, tiers.attached, tiers.off_reason = None, False, "UNAVAILABLE: no socket"
    prover = prover_of(tiers)
    began = time.monotonic()
    prover.prove()
    assert proof.ATTACH_SECONDS <= time.monotonic() - began < proof.PROOF_SECONDS
    assert set(results(prover)) == {"failed: UNAVAILABLE: no socket"}


def test_what_failed_is_tried_again_until_it_works_and_what_worked_is_left_alone(
    watching: Callable[[Prover], None],
) -> None:
    tiers = Tiers("ram", "pool")
    tiers.faults["pool"] = "refuse"
    prover = prover_of(tiers)
    prover.prove()
    watching(prover)
    eventually(lambda: len(tiers.seen) > 4)
    tiers.faults["ram"] = "other"  # nobody asks for it
    tiers.faults["pool"] = ""
    eventually(lambda: results(prover) == ("ok", "none", "ok"))
    num_tries = len(tiers.seen)
    time.sleep(0.1)
    assert len(tiers.seen) == num_tries, "all is well, nothing is tried"


def test_everything_is_told_anew_when_the_sidecar_says_something_new(watching: Callable[[Prover], None]) -> None:
    tiers = Tiers("ram")
    prover = prover_of(tiers)
    prover.prove()
    watching(prover)
    assert tiers.on_change is not None
    tiers.tiers = ("ram", "disk", "pool")
    tiers.on_change()
    eventually(lambda: results(prover) == ("ok", "ok", "ok"))
    tiers.attached, tiers.off_reason = False, "the sidecar ended the attachment"
    tiers.on_change()
    eventually(lambda: set(results(prover)) == {"failed: the sidecar ended the attachment"})
    tiers.attached, tiers.tiers = True, ("ram",)
    tiers.on_change()
    eventually(lambda: results(prover) == ("ok", "none", "none"))


def test_a_proof_says_of_which_state_of_the_tiers_all_of_it_is(watching: Callable[[Prover], None]) -> None:
    tiers = Tiers("ram", "pool")
    prover = prover_of(tiers)
    assert prover.describe()["state"] == ""
    tiers.faults["pool"] = "refuse"
    prover.prove()
    watching(prover)
    tiers.state = "second"  # its event has not come: what failed is tried again, and RAM's proof is of the first state
    tiers.faults.clear()
    eventually(lambda: results(prover)[2] == "ok")
    assert prover.describe()["state"] == "first"
    assert tiers.on_change is not None
    tiers.on_change()
    eventually(lambda: prover.describe()["state"] == "second")


def test_a_proof_that_breaks_is_tried_again_as_a_whole(watching: Callable[[Prover], None]) -> None:
    tiers = Tiers("ram")
    prover = prover_of(tiers)
    prover.prove()
    lookup, failures = tiers.lookup, [RuntimeError("a bug")] * 2

    def broken(*arguments: Any, **named: Any) -> list[Part]:
        if failures:
            raise failures.pop()
        return lookup(*arguments, **named)

    tiers.lookup = broken  # type: ignore[method-assign]
    watching(prover)
    tiers.state = "second"
    assert tiers.on_change is not None
    tiers.on_change()
    eventually(lambda: prover.describe() == {
        "generated": True, "tiers": {"ram": "ok", "disk": "none", "pool": "none"}, "state": "second",
    })  # fmt: skip
    assert not failures


def test_a_block_that_finds_no_slot_is_a_failure_of_ram() -> None:
    tiers = Tiers("ram")
    tiers.faults["ram"] = "full"
    prover = prover_of(tiers)
    prover.prove()
    assert results(prover)[0] == "failed: no slot in RAM was to be had"


def test_a_watch_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "FIRST_RETRY_SECONDS", 30.0)
    monkeypatch.setattr(proof, "_STOP_SECONDS", 30.0)
    prover = prover_of(Tiers("ram"))
    prover.prove()
    prover.watch()
    began = time.monotonic()
    prover.stop()
    assert time.monotonic() - began < 3.0
    assert not [thread for thread in threading.enumerate() if thread.name == "tier-proof"]


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ((TokenEvent("r", (), "error", error="the model failed in this request's step"),), "the model failed in this"),
        ((TokenEvent("r", (), "abort"),), "no token: abort"),
        ((TokenEvent("r", ()),), "no token in 0.1 s"),
    ],
)
def test_an_engine_that_generates_nothing_does_not_open(
    events: tuple[TokenEvent, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "GENERATE_SECONDS", 0.1)
    with pytest.raises(StartError, match=says):
        prover_of(Tiers("ram"), OneToken(*events)).prove()


def test_the_token_of_a_proof_is_counted_as_nobodys() -> None:
    bench = Bench()
    event = bench.complete([0], is_proof=True)
    assert (len(event.tokens), event.finish) == (1, "length")
    for line in bench.metrics.exposition().decode().splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith(("pagoda_prompt", "pagoda_requests", "pagoda_generation", "pagoda_time", "pagoda_replayed")):
            assert value in ("0", "0.0") or "_created" in name, line
    assert bench.engine.stats().hit_ratio is None
    bench.complete([0])
    assert bench.value("pagoda_requests_total", outcome="length") == 1
