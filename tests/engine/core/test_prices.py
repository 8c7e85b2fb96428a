"""The model of what loads cost: it starts from the sidecar's word, follows what is measured, and knows a queue."""

import pytest

from pagoda_engine.core.prices import Prices
from pagoda_engine.core.tiers import Part
from pagoda_engine.core.weighing import PROBE_SHARE, RETURN_SHARE, SERIAL_SHARE, LoadPrice
from tests.engine.core.bench import Clock

PART = Part("pool", 0, 10, 0.2)


def made() -> tuple[Prices, Clock]:
    clock = Clock()
    return Prices(clock), clock


def test_the_sidecars_estimate_stands_in_until_something_was_measured():
    prices, _ = made()
    assert prices.stretch(PART).price == LoadPrice(0.0, 0.02)
    assert prices.block_seconds("pool") == 0.0
    prices.record("pool", 0.06, 0.45, 10)
    assert prices.stretch(PART).price == LoadPrice(pytest.approx(0.01), pytest.approx(0.05))
    assert prices.block_seconds("pool") == pytest.approx(0.051)
    assert prices.price("ram") is None


def test_noise_is_averaged_and_a_change_is_believed_at_once():
    prices, _ = made()
    for seconds in (0.05, 0.06, 0.04, 0.05):
        prices.record("pool", seconds, 9 * seconds, 10)
    price = prices.price("pool")
    assert price is not None
    assert price.block_seconds == pytest.approx(0.05, rel=0.1)
    prices.record("pool", 0.002, 9 * 0.002, 10)
    assert prices.price("pool") == LoadPrice(pytest.approx(0.0), pytest.approx(0.002))


def test_a_load_that_brings_nothing_says_how_long_at_least_and_the_next_one_that_does_counts_alone():
    prices, _ = made()
    prices.record("pool", 0.02, 0.09, 10)
    prices.record_nothing("pool", 0.005)
    price = prices.price("pool")
    assert price is not None
    assert (price.latency_seconds, price.is_seen) == (pytest.approx(0.01), False)
    prices.record_nothing("pool", 8.0)
    assert prices.stretch(PART).price.latency_seconds == 8.0
    prices.record("pool", 0.03, 0.09, 10)
    assert prices.price("pool") == LoadPrice(pytest.approx(0.02), pytest.approx(0.01))


def test_what_is_in_flight_comes_first():
    prices, _ = made()
    prices.asked("pool", 30)
    assert prices.stretch(PART).price == LoadPrice(pytest.approx(0.6), 0.02)
    prices.asked("pool", -30)
    assert prices.stretch(PART).price == LoadPrice(0.0, 0.02)


def test_a_tier_judged_slow_is_held_to_a_lower_line():
    prices, _ = made()
    assert prices.stretch(PART).serial_share == SERIAL_SHARE
    prices.judge("pool", is_slow=True)
    assert prices.stretch(PART).serial_share == RETURN_SHARE
    prices.judge("pool", is_slow=False)
    assert prices.stretch(PART).serial_share == SERIAL_SHARE


def test_a_slow_tier_is_waited_for_now_and_then_and_less_often_each_time_it_fails():
    prices, _ = made()
    numbers = []
    for _ in range(3):
        prices.judge("pool", is_slow=True)
        numbers.append(1)
        while prices.stretch(PART).serial_share != PROBE_SHARE:
            prices.judge("pool", is_slow=True)
            numbers[-1] += 1
        prices.judge("pool", is_slow=False)
    assert numbers == [4, 8, 16]


def test_a_measurement_grows_stale():
    prices, clock = made()
    prices.record("pool", 0.02, 0.09, 10)
    assert not prices.is_stale("pool")
    clock.now += 10
    assert prices.is_stale("pool")
    prices.record_nothing("pool", 1.0)
    assert not prices.is_stale("pool")
