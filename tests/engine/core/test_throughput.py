"""The fit of what computing a prompt costs."""

import pytest

from pagoda_engine.core.throughput import Throughput
from pagoda_engine.core.workload import Workload


def test_nothing_is_known_before_something_was_measured():
    throughput = Throughput()
    assert throughput.seconds(100, 0) is None
    assert throughput.tokens_per_second == 0
    assert Workload(throughput).outstanding_seconds([]) == 0


def test_the_fit_finds_the_cost_of_tokens_and_of_attention():
    throughput = Throughput()
    for earlier in (0, 256, 512, 1024, 2048):
        throughput.record([(256, earlier)], 256 / 400 + 1e-7 * 256 * (earlier + 128))
    assert throughput.tokens_per_second == pytest.approx(400, rel=0.01)
    assert throughput.seconds(3000, 0) == pytest.approx(3000 / 400 + 1e-7 * 3000 * 1500, rel=0.01)


def test_equal_steps_cannot_tell_the_two_apart_and_give_the_mean():
    throughput = Throughput()
    for _ in range(5):
        throughput.record([(100, 0)], 0.5)
    assert throughput.tokens_per_second == pytest.approx(200)


def test_steps_that_mostly_decode_do_not_count():
    throughput = Throughput()
    throughput.record([(1, 50)] * 40, 0.5)
    throughput.record([(1, 50)] * 40 + [(20, 0)], 0.5)
    assert throughput.seconds(100, 0) is None


def test_old_steps_are_forgotten():
    throughput = Throughput()
    for seconds in [1.0] * 50 + [0.1] * 100:
        throughput.record([(100, 0)], seconds)
    assert throughput.tokens_per_second == pytest.approx(1000, rel=0.05)
