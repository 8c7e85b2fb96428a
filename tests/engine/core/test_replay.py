"""Replays after everything was forced out, and preemption under copies: what comes back is what was computed.

The oracle poisons a page the moment nobody holds it, so a copy that reads one too late, or a hit on one, is seen.
"""

import pytest

from tests.engine.core.bench import Bench
from tests.engine.core.fake_tiers import FakeTiers

PROMPTS = [[number, *range(20 + number, 39 + number)] for number in range(4)]  # five full blocks each
NEW_TOKENS = 6


def run_with_late_jobs(bench: Bench, names: list[str], num_steps: int) -> None:
    """Step until these requests have ended; each tier job goes on only after `num_steps` steps."""
    ages: dict[int, int] = {}
    for _ in range(500):
        bench.step()
        for job in list(bench.jobs):
            ages[id(job)] = ages.get(id(job), 0) + 1
            if ages[id(job)] > num_steps:
                job.finish()
                bench.jobs.remove(job)
        if all(bench.events[name].finish for name in names):
            return
    raise AssertionError(f"no end: {bench.engine.stats()}")


@pytest.mark.parametrize("num_steps", [0, 1, 2])
def test_e1_a_replay_after_forced_eviction_gives_equal_tokens(num_steps: int) -> None:
    """The device holds fewer pages than two of the prompts need, so each round throws the former out."""
    tiers = FakeTiers()
    bench = Bench(num_pages=9, tiers=tiers)
    for prompt in PROMPTS:
        run_with_late_jobs(bench, [bench.submit(prompt, NEW_TOKENS)], num_steps)
    first = {name: bench.events[name].tokens for name in bench.events}
    num_loaded = 0
    for number, prompt in enumerate(PROMPTS):
        name = bench.submit(prompt, NEW_TOKENS)
        run_with_late_jobs(bench, [name], num_steps)
        bench.assert_right(name)
        assert bench.events[name].tokens == first[f"r{number}"]
        num_loaded += bench.sources(name).get("ram", 0)
    assert num_loaded, "nothing came from below: nothing was replayed"
    bench.run()
    bench.assert_baseline()


@pytest.mark.parametrize("num_steps", [0, 1, 2])
@pytest.mark.parametrize("num_checkpoints", [0, 1, 2, 3])
def test_e2_a_request_preempted_under_its_own_store_leaves_right_blocks_below(
    num_steps: int, num_checkpoints: int
) -> None:
    """Preempted with the copy at any of its checkpoints; others take the device before the copy goes on."""
    tiers = FakeTiers()
    bench = Bench(num_pages=9, tiers=tiers)
    name = bench.submit(PROMPTS[0], NEW_TOKENS)
    bench.step()
    bench.finish_jobs()  # the lookup
    bench.step()  # 16 tokens computed, their store begins
    stores = [job for job in bench.jobs if job.kind == "tier-store"]
    assert stores
    for _ in range(num_checkpoints):
        if not stores[0].is_done:
            stores[0].advance()
    bench.jobs = [job for job in bench.jobs if not job.is_done]
    bench.engine._batch._preempt(bench.engine._roster.running[0])
    other = bench.submit(PROMPTS[1], NEW_TOKENS)
    bench.step(num_steps)
    bench.run()
    for each in (name, other):
        bench.assert_right(each)
    bench.assert_baseline()
    cold = Bench(tiers=tiers)
    event = cold.complete(PROMPTS[0], NEW_TOKENS)
    assert event.sources is not None
    assert event.sources["ram"] > 0
    assert event.tokens == bench.events[name].tokens
