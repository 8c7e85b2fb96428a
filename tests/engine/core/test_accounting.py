"""Each prompt token counts once, under what finally supplied it; everything supplied again is a replay."""

from hypothesis import given
from hypothesis import strategies as st

from pagoda_engine.core.accounting import Ledger
from pagoda_protocol.metrics import SOURCES
from tests.engine.core.bench import Bench
from tests.engine.core.fake_tiers import FakeTiers

PROMPT = list(range(21))


def counted(bench: Bench) -> dict[str, float]:
    values = {source: bench.value("pagoda_prompt_tokens_total", source=source) for source in SOURCES}
    return {source: value for source, value in values.items() if value}


def test_prompt_tokens_count_when_the_first_token_exists_and_only_then():
    bench = Bench()
    name = bench.submit(PROMPT, max_tokens=2)
    bench.step()  # 16 of 21
    assert counted(bench) == {}
    bench.engine.abort(name)
    bench.step()
    assert counted(bench) == {}
    bench.complete(PROMPT, max_tokens=3)
    assert counted(bench) == {"device": 16, "compute": 5}


def test_further_choices_of_a_client_request_count_as_replays():
    bench = Bench()
    bench.complete(PROMPT)
    event = bench.complete(PROMPT, replay_cause="n")
    assert counted(bench) == {"compute": 21}
    assert bench.value("pagoda_replayed_tokens_total", cause="n", source="device") == 20
    assert bench.value("pagoda_replayed_tokens_total", cause="n", source="compute") == 1
    assert event.sources is not None
    assert sum(event.sources.values()) == 21


def test_e27_a_preempted_request_that_finds_its_own_blocks_is_no_hit():
    """Neither on the device nor below."""
    for is_evicted in (False, True):
        tiers = FakeTiers()
        bench = Bench(tiers=tiers)
        name = bench.submit(PROMPT, max_tokens=4)
        bench.step()
        bench.finish_jobs()
        bench.step()  # 16 computed
        bench.finish_jobs()  # and stored
        bench.step(0)
        bench.engine._batch._preempt(bench.engine._roster.running[0])
        if is_evicted:
            taken = bench.engine._residency.table.take(bench.engine._residency.table.num_available) or []
            bench.engine._handle_inbox()
            taken += bench.engine._residency.table.take(bench.engine._residency.table.num_available) or []
            for page in taken:
                bench.engine._residency.table.release(page)
        bench.run()
        bench.assert_right(name)
        assert bench.sources(name) == {"compute": 21}
        assert counted(bench) == {"compute": 21}
        source = "ram" if is_evicted else "device"
        assert bench.value("pagoda_replayed_tokens_total", cause="preemption", source=source) == 16


def test_e27_a_load_that_failed_counts_as_computed():
    tiers = FakeTiers()
    Bench(tiers=tiers).complete(PROMPT)
    tiers.corrupt |= set(tiers.ram)
    bench = Bench(tiers=tiers)
    bench.complete(PROMPT)
    assert counted(bench) == {"compute": 21}


def test_what_is_recomputed_after_a_load_is_computed():
    ledger = Ledger(8)
    assert ledger.record(0, 8, "ram") == 0
    assert ledger.record(0, 4, "compute") == 4
    assert ledger.record(4, 8, "pool") == 4
    assert ledger.sources() == {"compute": 4, "device": 0, "ram": 0, "disk": 0, "pool": 4}


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.sampled_from(SOURCES)), max_size=10))
def test_supplies_are_first_supplies_plus_replays(supplies):
    ledger, plain, replayed = Ledger(8), [None] * 30, 0
    for start, length, source in supplies:
        replayed += sum(plain[position] is not None for position in range(start, start + length))
        for position in range(start, start + length):
            plain[position] = "compute" if plain[position] == "compute" else source
        assert ledger.record(start, start + length, source) >= 0
    again = Ledger(8)
    assert sum(again.record(start, start + length, source) for start, length, source in supplies) == replayed
    assert dict(ledger.sources()) == {source: plain[:8].count(source) for source in SOURCES}
