"""The plan for what lies below: never much worse than either extreme, for tiers of any constant pace."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_engine.core.throughput import ComputePrice
from pagoda_engine.core.weighing import (
    RETURN_SHARE,
    LoadPrice,
    RaceState,
    Stretch,
    chunk_blocks,
    expected_computed,
    is_useless,
    meet,
    race_span,
    weigh,
)

prices = st.builds(
    LoadPrice,
    st.sampled_from([0.0, 0.002, 0.1, 3.0, 1000.0]),
    st.sampled_from([1e-5, 1e-3, 0.01, 0.04, 0.05, 0.2, 5.0]),
)
runs = st.lists(st.builds(Stretch, st.integers(1, 60), prices), min_size=1, max_size=3)
computes = st.builds(ComputePrice, st.sampled_from([1e-4, 0.0025]), st.sampled_from([0.0, 1e-6]))


def block_times(compute: ComputePrice, num_blocks: int) -> list[float]:
    return [compute.seconds(16, 16 * index) for index in range(num_blocks)]


def load_seconds(run: list[Stretch]) -> float:
    """All of it, one after the other."""
    return sum(stretch.price.seconds(stretch.num_blocks) for stretch in run)


def cut(run: list[Stretch], first: int, stop: int) -> list[Stretch]:
    """The blocks [first, stop) of a run."""
    pieces, start = [], 0
    for stretch in run:
        low, high = max(first, start), min(stop, start + stretch.num_blocks)
        if low < high:
            pieces.append(replace(stretch, num_blocks=high - low))
        start += stretch.num_blocks
    return pieces


def planned_seconds(run: list[Stretch], times: list[float]) -> float:
    """What a load takes that does as LoadRun does, if every price is right: wait, then race leg by leg.

    A leg that the computing front has not reached by its end is followed by another one below it.
    """
    plan = weigh(run, times)
    floor, end, seconds = plan.num_serial, len(times), plan.serial_seconds
    behind = 0.0  # seconds to compute what no leg brings
    while floor < end:
        first, stop = (floor + block for block in race_span(cut(run, floor, end), times[floor:end]))
        if first == stop:
            break
        behind += math.fsum(times[stop:end])
        met = meet(cut(run, floor, stop), times[floor:stop])
        if floor + met.position > first:
            return seconds + met.seconds + behind
        leg_seconds, computed = load_seconds(cut(run, first, stop)), 0.0
        while floor < first and computed + times[floor] <= leg_seconds:
            computed += times[floor]
            floor += 1
        seconds, end = seconds + leg_seconds, first
    return seconds + math.fsum(times[floor:end]) + behind


@given(runs, computes)
def test_a_plan_is_as_good_as_the_better_extreme_and_never_much_worse_than_computing(run, compute):
    times = block_times(compute, sum(stretch.num_blocks for stretch in run))
    never, always = math.fsum(times), load_seconds(run)
    seconds = planned_seconds(run, times)
    assert seconds <= 1.1 * never + 1e-9
    assert seconds <= 1.05 * min(always, never) + 1.1 * max(times) or weigh(run, times).num_serial


@given(runs, computes)
def test_only_what_costs_a_tenth_is_waited_for(run, compute):
    times = block_times(compute, sum(stretch.num_blocks for stretch in run))
    plan = weigh(run, times)
    assert plan.serial_seconds <= 0.1 * math.fsum(times[: plan.num_serial]) + 1e-9
    first, stop = race_span(cut(run, plan.num_serial, len(times)), times[plan.num_serial :])
    assert 0 <= first <= stop <= len(times) - plan.num_serial
    assert plan.num_serial in {0} | {sum(one.num_blocks for one in run[: number + 1]) for number in range(len(run))}


def test_a_tier_that_was_too_slow_must_be_clearly_faster_to_be_waited_for_again():
    times = [0.04] * 100  # a tenth: 0.4 s
    for seconds, share, is_waited_for in [(0.39, 0.1, True), (0.39, RETURN_SHARE, False), (0.31, RETURN_SHARE, True)]:
        assert (weigh([Stretch(100, LoadPrice(0.0, seconds / 100), share)], times).num_serial == 100) is is_waited_for


def test_where_the_two_meet():
    assert meet([Stretch(10, LoadPrice(0.0, 1.0))], [1.0] * 10).position == 5
    assert meet([Stretch(10, LoadPrice(3.0, 1.0))], [1.0] * 10).position in (6, 7)
    assert meet([Stretch(10, LoadPrice(100.0, 1.0))], [1.0] * 10).position == 10
    assert meet([Stretch(10, LoadPrice(0.0, 0.001))], [1.0] * 10).position <= 1


def test_a_slow_end_is_left_to_be_computed_where_that_is_sooner_done():
    times = [1.0] * 20
    fast, dead = Stretch(10, LoadPrice(0.5, 0.2)), Stretch(10, LoadPrice(1000.0, 1.0))
    first, stop = race_span([fast, dead], times)
    assert (first, stop) == (0, 10)
    assert race_span([dead], times[:10]) == (0, 0)


def test_chunks_shrink_towards_the_meeting_and_end_in_waiting():
    load = LoadPrice(0.0, 0.02)

    def chunk(num_blocks: int, elapsed: float = 0.0) -> int:
        return chunk_blocks(RaceState(num_blocks, 0.04, load, elapsed, has_landed=True), 2)

    assert [chunk(num) for num in (120, 60, 30, 12)] == [20, 10, 5, 2]
    assert chunk(3) == 0, "it will have landed before the shortest step is over"
    assert chunk(3, elapsed=1.0) == 2, "but it is late: nobody waits on"
    assert chunk(1, elapsed=1.0) == 1


def test_nobody_waits_for_a_tier_that_was_never_seen_to_answer():
    for is_seen, blocks in ((True, 0), (False, 2)):
        race = RaceState(2, 0.04, LoadPrice(5.0, 0.001, is_seen), 4.99, has_landed=False)
        assert chunk_blocks(race, 2) == blocks


@given(
    st.builds(
        RaceState, st.integers(1, 300), st.sampled_from([1e-4, 0.04, 1.0]), prices, st.floats(0, 100), st.booleans()
    ),
    st.integers(1, 8),
)
def test_a_chunk_is_within_what_is_left(race, min_blocks):
    assert 0.0 <= expected_computed(race) <= race.num_blocks
    assert 0 <= chunk_blocks(race, min_blocks) <= race.num_blocks


def test_a_race_is_useless_once_nothing_will_come_in_time():
    assert not is_useless(RaceState(10, 0.04, LoadPrice(0.0, 0.04), 0.0, has_landed=True))
    assert is_useless(RaceState(10, 0.04, LoadPrice(0.0, 0.04), 100.0, has_landed=True))
    assert is_useless(RaceState(10, 0.04, LoadPrice(60.0, 0.04), 0.0, has_landed=False))


@pytest.mark.parametrize("num_blocks", [1, 100])
def test_a_dead_tier_is_not_raced(num_blocks):
    run, times = [Stretch(num_blocks, LoadPrice(1000.0, 1.0))], [0.04] * num_blocks
    assert weigh(run, times).num_serial == 0
    assert race_span(run, times) == (0, 0)
