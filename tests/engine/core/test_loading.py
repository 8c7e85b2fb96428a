"""Loads: what is verified is used, what is not is computed, and pages stay with the tier thread until it is done."""

from dataclasses import replace

import pytest

from pagoda_engine.core.tiers import LoadResult
from tests.engine.core.bench import SETTINGS, Bench
from tests.engine.core.fake_tiers import FakeTiers

PROMPT = list(range(21))  # five full blocks and the token that is always computed


def filled(num_pages: int = 32, prompt: list[int] = PROMPT, **settings: object) -> tuple[Bench, FakeTiers]:
    """A bench whose device is empty and whose RAM tier holds the prompt."""
    tiers = FakeTiers()
    Bench(tiers=tiers).complete(prompt)
    tiers.lookups.clear()
    tiers.stores.clear()
    bench = Bench(num_pages, replace(SETTINGS, **settings), tiers)  # type: ignore[arg-type]
    return bench, tiers


def test_blocks_below_are_loaded_and_give_the_same_tokens():
    bench, _ = filled()
    event = bench.complete(PROMPT, max_tokens=5)
    assert event.sources == {"compute": 1, "device": 0, "ram": 20, "disk": 0, "pool": 0}
    bench.assert_baseline()


def test_device_hits_are_taken_first_and_only_the_rest_is_asked_for():
    bench, tiers = filled()
    bench.complete(PROMPT[:9])
    tiers.lookups.clear()
    event = bench.complete(PROMPT)
    assert [len(addresses) for addresses in tiers.lookups] == [3]
    assert tiers.loads[-1] == (2, 5)
    assert event.sources == {"compute": 1, "device": 8, "ram": 12, "disk": 0, "pool": 0}


def test_a_run_over_two_tiers_counts_each_block_under_its_own():
    bench, tiers = filled()
    for record in sorted(tiers.records.values(), key=lambda record: record.index)[3:]:
        tiers.pool[record.address] = tiers.ram.pop(record.address)
    event = bench.complete(PROMPT)
    assert event.sources == {"compute": 1, "device": 0, "ram": 12, "disk": 0, "pool": 8}


def test_others_go_on_while_a_request_loads():
    bench, _ = filled()
    loading = bench.submit(PROMPT)
    other = bench.submit([40, 41], max_tokens=3)
    for _ in range(3):
        bench.step()
    assert bench.events[other].finish == "length"
    assert bench.engine.stats().num_loading == 1
    assert bench.events[loading].finish is None


def test_e4_a_load_that_fails_midway_keeps_the_verified_part_and_computes_the_rest():
    bench, tiers = filled()
    tiers.corrupt.add(next(record.address for record in tiers.records.values() if record.index == 2))
    event = bench.complete(PROMPT, max_tokens=5)
    assert event.sources == {"compute": 13, "device": 0, "ram": 8, "disk": 0, "pool": 0}
    assert bench.value("pagoda_tier_loads_skipped_total", reason="integrity") == 1
    bench.assert_baseline()


def test_a_tier_that_lies_about_what_it_has_costs_nothing_but_the_computing(monkeypatch):
    bench, tiers = filled()
    monkeypatch.setattr(tiers, "load", lambda *arguments, **order: LoadResult([], "no_slots"))
    event = bench.complete(PROMPT)
    assert event.sources is not None
    assert event.sources["compute"] == 21
    assert bench.value("pagoda_tier_loads_skipped_total", reason="no_slots") == 1


@pytest.mark.parametrize("error", [None, ValueError("a bug in the client")])
def test_an_unavailable_tier_is_a_miss(error, monkeypatch, caplog):
    bench, tiers = filled()
    tiers.is_failing = error is None
    if error is not None:

        def fail(*arguments):
            raise error

        monkeypatch.setattr(tiers, "lookup", fail)
    event = bench.complete(PROMPT, max_tokens=3)
    assert event.sources is not None
    assert event.sources["compute"] == 21
    reason = "no_sidecar" if error is None else "error"
    assert bench.value("pagoda_tier_loads_skipped_total", reason=reason) == 1
    assert ("no tier should" in caplog.text) == (error is not None)
    bench.run()
    bench.assert_baseline()


def test_no_load_is_tried_while_detached():
    bench, tiers = filled()
    tiers.attached = False
    bench.complete(PROMPT)
    assert not tiers.lookups
    assert bench.value("pagoda_tier_loads_skipped_total", reason="detached") == 1


def test_below_is_asked_once_however_many_chunks_the_prompt_takes():
    tiers = FakeTiers()
    bench = Bench(tiers=tiers, settings=replace(SETTINGS, max_batch_tokens=3))
    bench.complete(PROMPT)
    assert len(tiers.lookups) == 1


def test_two_requests_that_want_the_same_blocks_load_them_once():
    bench, tiers = filled()
    tiers.loads.clear()
    names = [bench.submit([*PROMPT, number], max_tokens=2) for number in range(3)]
    bench.step()
    assert (bench.engine.stats().num_loading, bench.engine.stats().num_following) == (1, 2)
    bench.run()
    assert tiers.loads == [(0, 5)]
    for name in names:
        bench.assert_right(name)
    assert bench.sources(names[0]) == {"ram": 20, "compute": 2}
    assert bench.sources(names[1]) == {"device": 20, "compute": 2}


@pytest.mark.parametrize("num_checkpoints", range(8))
@pytest.mark.parametrize("kind", ["abort", "preempt", "give up"])
def test_e21_leaving_a_load_at_any_moment_restores_the_baseline(num_checkpoints, kind):
    """E8 too: the pages stay with the tier thread; the device is full of others' requests meanwhile."""
    bench, _ = filled(num_pages=14)
    name = bench.submit(PROMPT, max_tokens=2)
    bench.step()
    for _ in range(num_checkpoints):
        if bench.jobs:
            bench.advance_job()
    is_done = not bench.jobs
    if kind == "abort":
        bench.engine.abort(name)
    elif kind == "preempt":
        bench.engine._batch._preempt(bench.engine._roster.running[0])
    else:
        bench.clock.now += 1000
    others = [bench.submit([49, number, *range(10, 28)], max_tokens=8) for number in range(3)]
    bench.step(3)
    assert is_done or bench.engine.stats().loads_in_flight
    bench.run()
    for other in others:
        bench.assert_right(other)
    if kind == "abort":
        assert bench.events[name].finish == "abort"
    else:
        bench.assert_right(name)
    bench.assert_baseline()


def test_what_was_verified_for_a_request_that_is_gone_is_kept_while_its_chain_is():
    bench, _ = filled()
    name = bench.submit(PROMPT)
    bench.step()
    bench.engine.abort(name)
    for _ in range(4):  # before the abort is seen: lookup, and blocks 0 and 1
        bench.advance_job()
    bench.step()
    bench.finish_jobs()
    bench.step()
    bench.assert_baseline()
    assert bench.engine.stats().num_cached == 2
    event = bench.complete(PROMPT)
    assert event.sources is not None
    assert (event.sources["device"], event.sources["ram"]) == (8, 12)


def test_a_loaded_block_whose_chain_is_gone_is_not_shared():
    bench, tiers = filled(num_pages=6)
    bench.complete(PROMPT[:9])  # blocks 0 and 1 on the device
    name = bench.submit(PROMPT)
    bench.step()
    for _ in range(4):  # lookup, and blocks 2 and 3 verified
        bench.advance_job()
    bench.engine.abort(name)
    bench.step()
    tiers.attached = False
    other = bench.submit([49, 48, 47, 46, 45], max_tokens=1)  # evicts block 1
    bench.step()
    bench.assert_right(other)
    bench.run()
    bench.assert_baseline()
    assert bench.engine.stats().num_cached == 2  # block 0, and the other's
    tiers.attached = True
    event = bench.complete(PROMPT, max_tokens=2)
    assert event.finish == "length"


def test_a_black_holed_tier_costs_a_bounded_time_and_later_requests_no_more_than_that():
    """The tier thread never comes back: the request goes on with other pages, and the old ones stay untouched."""
    bench, _ = filled(num_pages=14)
    name = bench.submit(PROMPT, max_tokens=2)
    bench.step()
    job = bench.engine._below.loader.jobs.copy().pop()
    assert job.give_up_at - bench.clock.now < 1.0
    bench.clock.now = job.give_up_at
    bench.step(2)
    assert bench.events[name].tokens
    assert bench.engine.stats().loads_in_flight == 1
    assert bench.value("pagoda_tier_loads_skipped_total", reason="given_up") == 1
    bench.run()
    bench.assert_right(name)
    bench.assert_baseline()


def test_a_job_that_waited_past_its_deadline_does_nothing():
    bench, tiers = filled()
    name = bench.submit(PROMPT)
    bench.step()
    bench.clock.now += 0.4
    bench.run(name)
    assert not tiers.lookups
    assert bench.value("pagoda_tier_loads_skipped_total", reason="deadline") == 1


# What a step takes is told to the clock, so that the fit knows the speed: 100 tokens per second.
def slow_bench(tiers: FakeTiers) -> Bench:
    bench = Bench(num_pages=64, tiers=tiers, settings=replace(SETTINGS, weigh_loads=True, load_overhead_seconds=0.05))

    def pass_time(chunks):
        bench.clock.now += sum(len(chunk.tokens) for chunk in chunks) / 100

    bench.runner.before_run = pass_time
    bench.complete([45] * 40)  # and is measured on this
    tiers.lookups.clear()
    tiers.loads.clear()
    tiers.timeouts.clear()
    return bench


def test_a_run_that_is_computed_sooner_than_asked_for_is_not_asked_for():
    tiers = FakeTiers()
    bench = slow_bench(tiers)
    bench.complete(PROMPT[:5])  # one block: 0.04 s to compute
    assert not tiers.lookups
    assert bench.value("pagoda_tier_loads_skipped_total", reason="short") == 1
    bench.complete(PROMPT)
    assert tiers.lookups


def test_deadlines_follow_from_what_computing_would_take():
    tiers = FakeTiers()
    bench = slow_bench(tiers)
    _, other = filled(prompt=list(range(49)))
    tiers.ram.update(other.ram)
    bench.complete(list(range(49)))
    lookup_seconds, load_seconds = tiers.timeouts[:2]
    assert lookup_seconds == pytest.approx(0.05)
    assert load_seconds == pytest.approx(2 * 0.48, rel=0.1)  # a race is over when computing would be, with some slack


def test_without_pages_for_a_load_the_request_computes_in_smaller_pieces():
    bench, _ = filled(num_pages=8, growth_blocks=0)
    first = bench.submit([49, *range(10, 20)], max_tokens=12)
    bench.step()
    second = bench.submit(PROMPT, max_tokens=2)
    bench.run()
    bench.assert_right(first)
    bench.assert_right(second)
    bench.assert_baseline()
