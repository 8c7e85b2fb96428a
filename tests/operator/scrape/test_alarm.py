"""Sleeping until a time that may be brought forward, in virtual time."""

import asyncio
from collections.abc import Callable

import pytest

from pagoda_operator.scrape.alarm import Alarm
from tests.support.virtual_time import run_virtually


def slept(at: float | None, ring: Callable[[Alarm], None] = lambda _: None) -> float:
    """Return how long a sleep until `at` seconds from now took, if `ring` happens after one second."""

    async def story() -> float:
        loop = asyncio.get_running_loop()
        alarm, began = Alarm(loop.time), loop.time()
        loop.call_later(1.0, ring, alarm)
        await alarm.sleep_until(None if at is None else began + at)
        return loop.time() - began

    return run_virtually(story())


@pytest.mark.parametrize(("at", "seconds"), [(5.0, 5.0), (0.0, 0.0), (-3.0, 0.0)])
def test_a_sleep_ends_at_its_time(at: float, seconds: float) -> None:
    assert slept(at) == pytest.approx(seconds)


def test_something_earlier_wakes_the_sleeper() -> None:
    assert slept(5.0, lambda alarm: alarm.ring(1002.0)) == pytest.approx(1.0)
    assert slept(None, lambda alarm: alarm.ring(9999.0)) == pytest.approx(1.0)


def test_something_later_or_nothing_does_not() -> None:
    assert slept(5.0, lambda alarm: alarm.ring(1006.0)) == pytest.approx(5.0)
    assert slept(5.0, lambda alarm: alarm.ring(None)) == pytest.approx(5.0)


def test_ringing_at_somebody_awake_is_nothing() -> None:
    async def story() -> None:
        alarm = Alarm(asyncio.get_running_loop().time)
        alarm.ring(0.0)
        await alarm.sleep_until(1001.0)
        alarm.ring(0.0)
        assert asyncio.get_running_loop().time() == pytest.approx(1001.0)

    run_virtually(story())


def test_ringing_twice_wakes_once() -> None:
    def twice(alarm: Alarm) -> None:
        alarm.ring(0.0)
        alarm.ring(0.0)

    assert slept(5.0, twice) == pytest.approx(1.0)
