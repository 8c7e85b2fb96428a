"""More wanted than there are pages: always progress, bounded preemptions, 4xx for what can never fit."""

from dataclasses import replace

import pytest

from pagoda_engine.core.request import RequestRejected
from tests.engine.core.bench import SETTINGS, Bench
from tests.engine.core.fake_tiers import FakeTiers

PROMPT = list(range(21))


@pytest.mark.parametrize("has_tiers", [False, True])
@pytest.mark.parametrize("growth_blocks", [0, 4])
def test_many_requests_on_a_device_for_two_all_end_right(has_tiers, growth_blocks):
    """E18, E20: with loads and stores in flight too."""
    tiers = FakeTiers() if has_tiers else None
    bench = Bench(num_pages=20, tiers=tiers, settings=replace(SETTINGS, growth_blocks=growth_blocks))
    names = [bench.submit([number, *PROMPT], max_tokens=40) for number in range(8)]
    previous = 0
    for _ in range(1000):
        bench.step()
        assert bench.engine.stats().num_preemptions - previous <= SETTINGS.max_preemptions_per_step
        previous = bench.engine.stats().num_preemptions
        bench.finish_jobs()
        if bench.engine.is_idle:
            break
    for name in names:
        bench.assert_right(name)
    bench.assert_baseline()
    assert previous <= len(names) * 6, "preemption in circles"
    assert growth_blocks or previous, "the test has no pressure"
    assert bench.value("pagoda_preemptions_total") == previous


def test_every_step_without_anything_in_flight_computes_something():
    """E18: never running 0, waiting N."""
    bench = Bench(num_pages=12, settings=replace(SETTINGS, growth_blocks=0))
    names = [bench.submit([number, *PROMPT], max_tokens=20) for number in range(6)]
    while any(bench.events[name].finish is None for name in names):
        before = bench.runner.num_computed_tokens
        bench.step()
        assert bench.runner.num_computed_tokens > before


def test_a_preempted_request_keeps_its_tokens_and_finds_its_blocks_again():
    bench = Bench(num_pages=32)
    name = bench.submit(PROMPT, max_tokens=20)
    bench.step(8)
    tokens = list(bench.events[name].tokens)
    assert tokens
    bench.engine._batch._preempt(bench.engine._roster.running[0])
    bench.step()
    assert bench.events[name].tokens[: len(tokens)] == tokens
    num_before = bench.runner.num_computed_tokens
    assert bench.runner.steps[-1][0] <= 4  # the partial block alone is computed again
    bench.run()
    bench.assert_right(name)
    assert bench.runner.num_computed_tokens >= num_before


def test_a_preempted_request_is_admitted_before_those_that_came_after_it():
    bench = Bench(settings=replace(SETTINGS, max_sequences=2))
    names = [bench.submit([number, *PROMPT], max_tokens=5) for number in range(4)]
    bench.step(2)
    bench.engine._batch._preempt(bench.engine._roster.get(names[1]))
    bench.step()
    assert [request.request_id for request in bench.engine._roster.running] == names[:2]


def test_cached_blocks_that_a_request_would_revive_do_not_count_as_room_for_it():
    bench = Bench(num_pages=10, settings=replace(SETTINGS, growth_blocks=0))
    bench.complete(PROMPT[:17])  # leaves four cached blocks
    bench.submit([49] * 18, max_tokens=2)
    bench.step()
    second = bench.submit([*PROMPT[:17], *range(8)])  # three more pages, but there is one
    bench.step()
    assert bench.engine.stats().num_waiting == 1
    bench.run()
    bench.assert_right(second)
    assert bench.engine.stats().num_preemptions == 0


def test_pages_above_a_block_that_is_being_stored_are_not_promised_to_others():
    bench = Bench()
    first, second = (bench.submit([*PROMPT[:9], tail, 1, 2, 3], max_tokens=9) for tail in (30, 31))
    bench.step(4)
    table, residency = bench.engine._residency.table, bench.engine._residency
    leaving, staying = bench.engine._roster.running
    page = leaving.blocks[2].page
    table.hold(page)  # as a store does
    bench.engine.abort(first)
    bench.engine._handle_inbox()
    own, num_available = residency.num_own_pages(staying), table.num_available
    bench.engine._batch._preempt(staying)
    assert table.num_available == num_available + own
    table.release(page)
    bench.run()
    bench.assert_right(second)
    bench.assert_baseline()


def test_a_large_prompt_is_not_passed_for_ever_by_small_ones():
    bench = Bench(num_pages=20)
    running = bench.submit([1, 2, 3], max_tokens=30)
    bench.step()
    large = bench.submit([9] * 70, max_tokens=4)
    small = [bench.submit([number, 2, 3], max_tokens=4) for number in range(4, 8)]
    bench.run(running)
    assert all(bench.events[name].finish is None for name in small)
    bench.run(large)
    bench.run()
    for name in [running, large, *small]:
        bench.assert_right(name)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "code", "param"),
    [
        ([], 1, "invalid_value", "prompt"),
        ([50], 1, "invalid_value", "prompt"),
        ([-1], 1, "invalid_value", "prompt"),
        ([1], 0, "invalid_value", "max_tokens"),
        ([1] * 400, 1, "context_length_exceeded", "prompt"),
        ([1] * 390, 11, "context_length_exceeded", "max_tokens"),
        ([1] * 30, 11, "context_length_exceeded", "max_tokens"),  # 11 blocks on a device of 10
    ],
)
def test_e19_what_can_never_be_served_is_refused_at_the_door(prompt, max_tokens, code, param):
    bench = Bench(num_pages=10)
    with pytest.raises(RequestRejected) as rejected:
        bench.submit(prompt, max_tokens)
    assert (rejected.value.code, rejected.value.param) == (code, param)
    assert bench.value("pagoda_requests_total", outcome="rejected") == 1
    assert bench.engine.is_idle


def test_e19_the_largest_request_that_is_let_in_is_served():
    """Exactly as many blocks as the device has, with others in the way."""
    bench = Bench(num_pages=10)
    assert bench.engine.max_request_tokens == 40
    other = bench.submit([1, 2, 3, 4, 5, 6], max_tokens=10)
    bench.step(2)
    largest = bench.submit([7] * 30, max_tokens=10)
    bench.run()
    bench.assert_right(other)
    bench.assert_right(largest)
    bench.assert_baseline()


def test_two_living_requests_never_share_an_id():
    bench = Bench()
    bench.submit([1, 2], request_id="same")
    with pytest.raises(RequestRejected, match="still running"):
        bench.submit([1, 2], request_id="same")
    bench.run("same")
    bench.submit([1, 2], request_id="same")
    bench.run("same")
