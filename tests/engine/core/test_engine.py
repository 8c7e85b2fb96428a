"""What a caller can rely on: events, aborts, failures, and a thread that sleeps when there is nothing to do."""

import threading
import time
from dataclasses import fields, replace

import pytest

from pagoda_engine.core import engine
from pagoda_engine.core.engine import Engine
from pagoda_engine.core.request import NewRequest, TokenEvent
from pagoda_engine.core.settings import EngineSettings
from pagoda_engine.model.interface import Sampling
from pagoda_runtime.metrics import Metrics
from tests.engine.core.bench import SETTINGS, Bench
from tests.engine.core.fake_tiers import FakeTiers
from tests.engine.core.oracle import OracleRunner, reference

PROMPT = list(range(21))


def test_a_request_gets_the_tokens_of_the_reference_and_one_event_for_each():
    bench = Bench()
    event = bench.complete(PROMPT, max_tokens=7)
    assert (event.num_events, event.finish) == (7, "length")
    bench.assert_baseline()


def test_a_stop_token_ends_the_request_and_is_its_last_token():
    bench = Bench()
    tokens = bench.complete(PROMPT, max_tokens=7).tokens
    event = bench.complete(PROMPT, max_tokens=7, stop_token_ids=frozenset(tokens[2:3]))
    assert event.finish == "stop"
    assert event.tokens == tokens[: tokens.index(tokens[2]) + 1]


def test_e21_an_abort_ends_a_request_in_any_state_once():
    bench = Bench(settings=replace(SETTINGS, max_sequences=1))
    running, waiting = bench.submit(PROMPT, max_tokens=9), bench.submit([*PROMPT, 1])
    bench.step(3)
    for _ in range(2):
        bench.engine.abort(running)
        bench.engine.abort(waiting)
        bench.engine.abort("never seen")
        bench.step()
    assert bench.events[running].finish == bench.events[waiting].finish == "abort"
    assert bench.value("pagoda_requests_total", outcome="abort") == 2
    bench.assert_baseline()


def test_an_abort_before_the_first_step_leaves_nothing():
    bench = Bench()
    bench.engine.abort(bench.submit(PROMPT))
    bench.step()
    bench.assert_baseline()


def test_a_failing_sink_ends_its_own_request_alone():
    bench = Bench()

    def fail(event: TokenEvent) -> None:
        raise OSError("client gone")

    good = bench.submit(PROMPT, max_tokens=3)
    request = replace(bench.requests[good], request_id="bad")
    bench.engine.submit(request, fail)
    bench.run()
    bench.assert_right(good)
    bench.assert_baseline()


def test_a_failing_step_fails_its_requests_and_the_loop_goes_on():
    bench = Bench(settings=replace(SETTINGS, max_sequences=2))
    names = [bench.submit([number, *PROMPT], max_tokens=2) for number in range(3)]

    def fail(chunks):
        bench.runner.before_run = lambda chunks: None
        raise RuntimeError("no memory")

    bench.runner.before_run = fail
    bench.run()
    assert [bench.events[name].finish for name in names] == ["error", "length", "length"]
    assert "model failed" in str(bench.events[names[0]].error)
    assert bench.engine.is_healthy
    bench.assert_right(names[2])
    bench.assert_baseline()


def test_metrics_have_the_names_that_dashboards_know():
    bench = Bench()
    bench.submit(PROMPT, max_tokens=9)
    bench.step(3)
    assert bench.value("vllm:num_requests_running") == 1
    assert bench.value("vllm:num_requests_waiting") == 0
    assert bench.value("vllm:kv_cache_usage_perc") == pytest.approx(6 / 32)
    assert bench.value("pagoda_blocks", state="free") == 26
    assert 'vllm:cache_config_info{block_size="4"' in bench.metrics.exposition().decode()
    bench.run()
    assert bench.value("vllm:num_requests_running") == 0
    assert bench.value("pagoda_blocks", state="cached") == 7
    assert bench.value("pagoda_generation_tokens_total") == 9
    assert bench.value("pagoda_time_to_first_token_seconds_count") == 1
    assert bench.value("pagoda_inter_token_seconds_count") == 8


def test_a_bad_record_is_counted_by_tier_and_reason():
    tiers = FakeTiers()
    bench = Bench(tiers=tiers)
    assert tiers.on_integrity_failure is not None
    tiers.on_integrity_failure("ram", "xxh3")
    assert bench.value("pagoda_integrity_failures_total", tier="ram", reason="xxh3") == 1


def test_the_defaults_of_settings_are_what_was_decided():
    decided = {
        "max_preemptions_per_step": 2,
        "growth_blocks": 4,
        "follow_seconds": 2.0,
        "weigh_loads": True,
        "load_overhead_seconds": 0.003,
        "max_lookup_seconds": 0.25,
        "min_load_seconds": 0.1,
        "max_loads": 16,
        "store_seconds": 5.0,
        "max_store_blocks": 256,
        "report_seconds": 0.1,
        "load_report_seconds": 0.5,
        "max_digest_rows": 4096,
    }
    settings = EngineSettings(1, 1, 1)
    assert {one.name: getattr(settings, one.name) for one in fields(settings)[3:]} == decided
    with pytest.raises(ValueError, match="max_batch_tokens"):
        EngineSettings(1, 0, 1)
    with pytest.raises(ValueError, match="store_seconds"):
        EngineSettings(1, 1, 1, store_seconds=-1)
    assert EngineSettings(1, 8, 64).num_places == 7


class Threaded:
    """An engine on its own thread and on real tier threads."""

    def __init__(self, tiers: FakeTiers | None = None, num_pages: int = 32) -> None:
        self.runner = OracleRunner(num_pages)
        self.metrics = Metrics()
        self.engine = Engine(self.runner, SETTINGS, self.metrics, tiers)
        self.runner.watch(self.engine)
        self.ends: dict[str, threading.Event] = {}
        self.tokens: dict[str, list[int]] = {}
        self.finishes: dict[str, str] = {}

    def submit(self, request_id: str, prompt: list[int], max_tokens: int = 1) -> NewRequest:
        request = NewRequest(
            request_id, prompt, bytes(32), 7, Sampling(), max_tokens, frozenset(), arrival=time.monotonic()
        )
        self.ends[request_id], self.tokens[request_id] = threading.Event(), []
        self.engine.submit(request, self._sink)
        return request

    def wait(self, request_id: str) -> str:
        assert self.ends[request_id].wait(20)
        return self.finishes[request_id]

    def wait_until_idle(self) -> None:
        deadline = time.monotonic() + 20
        while not self.engine.is_idle:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def _sink(self, event: TokenEvent) -> None:
        self.tokens[event.request_id] += event.tokens
        if event.finish is not None:
            self.finishes[event.request_id] = event.finish
            self.ends[event.request_id].set()


def test_the_thread_serves_many_callers_and_comes_to_rest():
    tiers = FakeTiers()
    threaded = Threaded(tiers)
    threaded.engine.start()
    requests: list[NewRequest] = []

    def call(number: int) -> None:
        for turn in range(4):
            request = threaded.submit(f"{number}-{turn}", [number % 3, *PROMPT[: 5 * (turn + 1)]], max_tokens=6)
            requests.append(request)
            if turn == 2:
                threaded.engine.abort(request.request_id)
            threaded.wait(request.request_id)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(30)
    threaded.wait_until_idle()
    for request in requests:
        if threaded.finishes[request.request_id] != "abort":
            assert (threaded.tokens[request.request_id], threaded.finishes[request.request_id]) == reference(request)
    threaded.engine.check_integrity()
    stats = threaded.engine.stats()
    assert stats.num_free + stats.num_cached == 32
    threaded.engine.stop()
    assert tiers.told == {block.address for block in threaded.engine._residency.table}


def test_e26_a_finished_load_wakes_the_engine_and_nothing_polls():
    tiers = FakeTiers()
    Bench(tiers=tiers).complete(PROMPT)
    tiers.checkpoint = lambda: None
    may_go_on = threading.Event()
    load = tiers.load

    def slow_load(*arguments, **order):
        assert may_go_on.wait(10)
        return load(*arguments, **order)

    tiers.load = slow_load  # type: ignore[method-assign]
    threaded = Threaded(tiers)
    num_steps = 0
    step = threaded.engine.step

    def counted_step() -> bool:
        nonlocal num_steps
        num_steps += 1
        return step()

    threaded.engine.step = counted_step  # type: ignore[method-assign]
    threaded.engine.start()
    threaded.submit("a", PROMPT)
    time.sleep(0.25)
    assert num_steps <= 4
    started_at = time.monotonic()
    may_go_on.set()
    threaded.wait("a")
    assert time.monotonic() - started_at < 0.3, "it was not woken: it looks by itself after 0.65 s"
    threaded.wait_until_idle()
    num_before = num_steps
    time.sleep(0.1)
    assert num_steps <= num_before + 2
    threaded.engine.stop()


def test_whether_a_sidecar_is_attached_shows_while_the_engine_sleeps():
    tiers = FakeTiers()
    threaded = Threaded(tiers)
    threaded.engine.start()
    for is_attached in (True, False, True):
        tiers.attached = is_attached
        deadline = time.monotonic() + 20
        while f"pagoda_tier_attached {float(is_attached)}" not in threaded.metrics.exposition().decode():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    threaded.engine.stop()


def test_stopping_ends_what_lives_and_later_requests_get_an_error():
    threaded = Threaded()
    hold = threading.Event()
    threaded.runner.before_run = lambda chunks: hold.wait(0.05)
    threaded.engine.start()
    threaded.submit("a", PROMPT, max_tokens=50)
    threaded.engine.stop()
    assert threaded.wait("a") == "abort"
    threaded.submit("b", PROMPT)
    assert threaded.wait("b") == "error"
    assert threaded.engine.is_healthy
    assert threaded.engine.is_idle
    threaded.engine.check_integrity()


def test_a_step_that_does_not_end_keeps_no_stop_waiting(monkeypatch, caplog):
    monkeypatch.setattr(engine, "_STOP_SECONDS", 0.1)
    threaded = Threaded(FakeTiers())
    has_begun, may_end = threading.Event(), threading.Event()

    def hang(chunks):
        has_begun.set()
        assert may_end.wait(20)

    threaded.runner.before_run = hang
    threaded.engine.start()
    threaded.submit("a", PROMPT)
    assert has_begun.wait(20)
    started_at = time.monotonic()
    threaded.engine.stop()
    assert time.monotonic() - started_at < 5
    assert "the engine's thread does not end: stuck in a step for 0.1 s" in caplog.messages
    may_end.set()
    assert threaded.wait("a") == "abort"


def test_a_broken_loop_is_unhealthy_and_leaves_nobody_waiting(monkeypatch):
    threaded = Threaded()

    def break_down() -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(threaded.engine._batch, "schedule", break_down)
    threaded.engine.start()
    threaded.submit("a", PROMPT)
    assert threaded.wait("a") == "error"
    threaded.engine.stop()
    assert not threaded.engine.is_healthy
    threaded.submit("b", PROMPT)
    assert threaded.wait("b") == "error"
