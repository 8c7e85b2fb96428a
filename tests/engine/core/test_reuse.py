"""Early reuse: a block is shared as soon as it is full; who needs one that is being computed waits for it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_engine.core.settings import EngineSettings
from tests.engine.core.bench import SETTINGS, Bench
from tests.engine.core.fake_tiers import FakeTiers
from tests.engine.core.oracle import reference

PREFIX = list(range(40))  # ten blocks


def test_a_burst_with_one_prefix_computes_the_prefix_once():
    bench = Bench(num_pages=64)
    names = [bench.submit([*PREFIX, number, 1, 2], max_tokens=3) for number in range(6)]
    bench.run()
    for name in names:
        bench.assert_right(name)
    assert bench.sources(names[0]) == {"compute": 43}
    assert all(bench.sources(name) == {"compute": 3, "device": 40} for name in names[1:])
    assert bench.runner.num_computed_tokens == 43 + 5 * 3 + 6 * 2
    bench.assert_baseline()


def test_blocks_are_shared_before_the_request_that_computes_them_ends():
    bench = Bench(num_pages=64)
    long = bench.submit(PREFIX, max_tokens=100)
    bench.step(8)
    second = bench.complete([*PREFIX, 1], max_tokens=2)
    assert bench.events[long].finish is None
    assert second.sources == {"compute": 1, "device": 40, "ram": 0, "disk": 0, "pool": 0}


def test_generated_blocks_are_shared_too():
    bench = Bench()
    first = bench.complete(PREFIX[:6], max_tokens=11)  # KV of 16 tokens: the last one was only sampled
    second = bench.complete([*PREFIX[:6], *first.tokens], max_tokens=2)
    assert second.sources is not None
    assert second.sources["device"] == 16


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9])
def test_the_last_prompt_token_is_always_computed(length):
    bench = Bench()
    bench.complete(PREFIX[:length])
    event = bench.complete(PREFIX[:length])
    assert event.sources is not None
    assert event.sources["device"] == (length - 1) // 4 * 4


def test_a_follower_takes_no_budget_while_it_waits():
    bench = Bench(settings=replace(SETTINGS, max_batch_tokens=8))
    bench.submit(PREFIX)
    bench.submit([*PREFIX, 1])
    bench.submit([45, 46, 47, 48, 49], max_tokens=1)  # unrelated, behind the follower
    bench.step(3)
    assert bench.engine.stats().num_following == 1
    assert bench.runner.steps == [[8], [8], [8]]
    bench.step(3)
    assert bench.runner.steps[3:] == [[8], [8], [1, 5]]


def test_a_follower_takes_over_at_once_when_the_owner_is_aborted():
    bench = Bench()
    owner = bench.submit(PREFIX)
    follower = bench.submit([*PREFIX, 1], max_tokens=4)
    bench.step()
    bench.engine.abort(owner)
    bench.step()
    assert bench.engine.stats().num_following == 0
    bench.run()
    bench.assert_right(follower)
    assert bench.sources(follower) == {"device": 16, "compute": 25}
    bench.assert_baseline()


def test_a_follower_takes_over_from_an_owner_whose_step_failed():
    bench = Bench()
    owner = bench.submit(PREFIX)
    follower = bench.submit([*PREFIX, 1], max_tokens=4)

    def fail(chunks):
        bench.runner.before_run = lambda chunks: None
        raise RuntimeError("out of memory")

    bench.runner.before_run = fail
    bench.run()
    assert (bench.events[owner].finish, bench.events[owner].tokens) == ("error", [])
    bench.assert_right(follower)
    assert bench.sources(follower) == {"compute": 41}
    assert bench.value("pagoda_requests_total", outcome="error") == 1
    bench.assert_baseline()


def test_a_follower_passes_an_owner_that_makes_no_progress():
    tiers = FakeTiers()
    bench = Bench(tiers=tiers)
    bench.submit(PREFIX)
    follower = bench.submit([*PREFIX, 1])
    bench.step()
    assert bench.engine.stats().num_loading == 1  # and its lookup does not return
    assert bench.engine.stats().num_following == 1
    bench.clock.now += bench.engine._settings.follow_seconds / 2
    load = bench.engine._roster.running[0].load
    load.lookup_seconds = load.wait_until = 1e9  # as if its deadlines were far away
    bench.step()
    assert bench.engine.stats().num_following == 1
    bench.clock.now += bench.engine._settings.follow_seconds
    bench.step()
    assert bench.engine.stats().num_following == 0
    bench.run()
    bench.assert_right(follower)


def test_a_request_waits_for_earlier_arrivals_only():
    """A preempted request that comes back takes its blocks over from the later one that had taken them from it."""
    bench = Bench()
    first = bench.submit(PREFIX, max_tokens=2)
    second = bench.submit([*PREFIX, 1], max_tokens=2)
    bench.step()
    batch = bench.engine._batch
    batch._preempt(batch.roster.get(first))
    bench.step()
    assert not batch.roster.get(first).is_blocked
    bench.run()
    bench.assert_right(first)
    bench.assert_right(second)
    bench.assert_baseline()


def test_other_tenants_share_nothing():
    bench = Bench()
    bench.complete(PREFIX, root=bytes(32))
    event = bench.complete(PREFIX, root=bytes([1]) * 32)
    assert event.sources is not None
    assert event.sources["device"] == 0


@given(
    st.integers(2, 64),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), min_size=1, max_size=5),
)
def test_the_output_does_not_depend_on_the_size_of_chunks(max_batch_tokens, prompts):
    """E12."""
    settings = EngineSettings(max_model_tokens=400, max_batch_tokens=max_batch_tokens, max_sequences=4)
    bench = Bench(num_pages=64, settings=settings)
    names = [bench.submit(prompt, max_tokens=5) for prompt in prompts]
    bench.run()
    for name in names:
        assert (bench.events[name].tokens, bench.events[name].finish) == reference(bench.requests[name])
    bench.assert_baseline()
