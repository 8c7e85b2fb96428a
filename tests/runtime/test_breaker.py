"""The breaker, on a clock of the test's own."""

from hypothesis import given
from hypothesis import strategies as st

from pagoda_runtime.breaker import Breaker, BreakerState


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_it_opens_after_the_failures_allowed_and_lets_one_probe_through_later() -> None:
    clock = Clock()
    breaker = Breaker(max_failures=2, open_seconds=5, clock=clock)
    assert breaker.allow()
    breaker.failed()
    assert breaker.allow()
    breaker.failed()
    assert breaker.state is BreakerState.OPEN
    assert not breaker.allow()
    clock.now = 5
    assert breaker.allow()
    assert not breaker.allow(), "a second call while the probe is out"
    breaker.succeeded()
    assert breaker.state is BreakerState.CLOSED


def test_a_failed_probe_opens_it_for_the_whole_time_again() -> None:
    clock = Clock()
    breaker = Breaker(max_failures=1, open_seconds=5, clock=clock)
    breaker.allow()
    breaker.failed()
    clock.now = 5
    assert breaker.allow()
    breaker.failed()
    clock.now = 9.9
    assert not breaker.allow()
    clock.now = 10
    assert breaker.allow()


def test_a_success_forgets_earlier_failures() -> None:
    breaker = Breaker(max_failures=2, clock=Clock())
    for _ in range(5):
        breaker.allow()
        breaker.failed()
        breaker.allow()
        breaker.succeeded()
    assert breaker.state is BreakerState.CLOSED


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 3)), max_size=50))
def test_a_peer_that_always_fails_is_called_at_most_once_per_open_time(steps: list[tuple[bool, float]]) -> None:
    clock = Clock()
    breaker = Breaker(max_failures=1, open_seconds=2, clock=clock)
    calls = 0
    for _, wait in steps:
        if breaker.allow():
            calls += 1
            breaker.failed()
        clock.now += wait
    assert calls <= 1 + clock.now / 2
