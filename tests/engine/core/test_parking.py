"""Idle sessions: what leaves the device is safe below, was idle to the last moment, and comes back as it was."""

import pytest

from tests.engine.core.bench import Bench
from tests.engine.core.fake_tiers import FakeTiers
from tests.engine.core.oracle import BLOCK_TOKENS

STEM = list(range(1, 9))  # two blocks
IDLE = 20.0


def prompt_of(number: int, num_blocks: int = 3) -> list[int]:
    """A prompt of the stem, `num_blocks` blocks of its own and one token more."""
    return [*STEM, *[20 + number] * (num_blocks * BLOCK_TOKENS), 0]


def bench_of(num_pages: int = 64) -> tuple[Bench, FakeTiers]:
    tiers = FakeTiers()
    bench = Bench(num_pages, tiers=tiers)
    bench.idle_seconds = IDLE
    return bench, tiers


def settle(bench: Bench, seconds: float = 0.0, rounds: int = 8) -> None:
    """End what is under way, let time pass, then do all there is to do."""
    bench.finish_jobs()
    bench.step()
    bench.clock.now += seconds
    for _ in range(rounds):
        bench.step()
        bench.finish_jobs()
        bench.clock.now += 0.1
    bench.step()


def cached(bench: Bench) -> int:
    return bench.engine.stats().num_cached


def stayed(bench: Bench, reason: str) -> float:
    return bench.value("pagoda_sessions_not_parked_total", reason=reason)


def test_an_idle_session_leaves_the_device_and_comes_back_with_the_same_tokens():
    bench, _ = bench_of()
    bench.complete(prompt_of(1), max_tokens=5)
    settle(bench)
    assert cached(bench) == 6
    settle(bench, IDLE)
    assert cached(bench) == 0
    assert bench.value("pagoda_parked_sessions_total") == 1
    assert bench.value("pagoda_parked_blocks_total") == 6
    event = bench.complete(prompt_of(1), max_tokens=9)  # checked against the reference
    assert event.sources is not None
    assert event.sources["ram"] == 5 * BLOCK_TOKENS
    bench.run()
    bench.assert_baseline()


def test_a_session_that_is_not_idle_yet_stays():
    bench, _ = bench_of()
    bench.complete(prompt_of(1))
    settle(bench, IDLE - 2)
    assert cached(bench) == 5
    settle(bench, 2)
    assert cached(bench) == 0


def test_the_idle_time_counts_from_the_last_touch_and_may_change_at_any_moment():
    bench, _ = bench_of()
    bench.complete(prompt_of(1))
    settle(bench, IDLE - 2)
    bench.complete(prompt_of(1))
    settle(bench, IDLE - 2)
    assert cached(bench) == 5
    bench.idle_seconds = 1.0
    settle(bench)
    assert cached(bench) == 0


def test_only_the_blocks_that_no_other_session_uses_are_dropped():
    bench, _ = bench_of()
    bench.complete(prompt_of(1))
    settle(bench, IDLE - 2)
    bench.complete(prompt_of(2))
    settle(bench, 2)
    assert bench.value("pagoda_parked_blocks_total") == 3
    assert cached(bench) == 5
    event = bench.complete(prompt_of(2))
    assert event.sources is not None
    assert event.sources["device"] == 5 * BLOCK_TOKENS


def test_a_stem_that_was_used_since_stays_although_no_other_session_is_there():
    """Another caller's prompt ended in the stem itself, so no block hangs on it but the idle session's."""
    bench, _ = bench_of()
    bench.complete(prompt_of(1))
    settle(bench, IDLE - 2)
    bench.complete([*STEM, 0])
    settle(bench, 2)
    assert bench.value("pagoda_parked_blocks_total") == 3
    assert cached(bench) == 2


def test_what_is_missing_below_is_stored_before_the_session_leaves():
    bench, tiers = bench_of()
    bench.complete(prompt_of(1), tenant_tag=99)
    settle(bench)
    lost = [address for address, record in tiers.records.items() if record.index >= 2]
    for address in lost:
        del tiers.ram[address], tiers.records[address]
    bench.clock.now += IDLE
    bench.step()
    bench.finish_jobs()  # looked up
    bench.step()
    assert cached(bench) + bench.engine.stats().num_referenced == 5
    assert stayed(bench, "missing") == 1
    settle(bench, rounds=30)
    assert set(lost) <= set(tiers.ram)
    assert {tiers.records[address].tenant_tag for address in lost} == {99}
    assert cached(bench) == 0


def test_a_hole_in_the_middle_counts_as_missing():
    bench, tiers = bench_of()
    bench.complete(prompt_of(1))
    settle(bench)
    (hole,) = (address for address, record in tiers.records.items() if record.index == 1)
    del tiers.ram[hole]
    settle(bench, IDLE, rounds=1)
    assert cached(bench) + bench.engine.stats().num_referenced == 5
    settle(bench, rounds=30)
    assert hole in tiers.ram
    assert cached(bench) == 0


def test_the_pool_is_as_safe_as_ram():
    bench, tiers = bench_of()
    bench.complete(prompt_of(1))
    settle(bench)
    tiers.pool, tiers.ram = tiers.ram, {}
    settle(bench, IDLE)
    assert cached(bench) == 0


@pytest.mark.parametrize(
    ("fault", "value", "reason"),
    [("attached", False, "detached"), ("has_ram", False, "ram_off"), ("is_failing", True, "no_sidecar")],
)
def test_without_working_tiers_nothing_leaves_and_it_does_once_they_are_back(fault, value, reason):
    bench, tiers = bench_of()
    bench.complete(prompt_of(1))
    settle(bench)
    setattr(tiers, fault, value)
    settle(bench, IDLE, rounds=40)
    assert cached(bench) == 5
    assert 1 <= stayed(bench, reason) <= 4
    setattr(tiers, fault, not value)
    settle(bench, 16.0)
    assert cached(bench) == 0


def test_nothing_leaves_when_its_store_is_refused():
    bench, tiers = bench_of()
    tiers.is_refusing = True
    bench.complete(prompt_of(1))
    settle(bench, IDLE, rounds=60)
    assert cached(bench) == 5
    assert stayed(bench, "missing") >= 2
    assert bench.value("pagoda_parked_sessions_total") == 0


@pytest.mark.parametrize("is_running", [True, False])
def test_a_session_that_is_touched_while_it_is_looked_up_stays(is_running):
    bench, _ = bench_of()
    bench.complete(prompt_of(1))
    settle(bench)
    bench.clock.now += IDLE
    bench.step()
    assert [job.kind for job in bench.jobs] == ["tier-park"]
    name = bench.submit([*prompt_of(1), 1, 2, 3, 4], max_tokens=20)
    bench.step()  # holds the session's blocks
    if not is_running:
        bench.engine.abort(name)
        bench.step()  # and lets go of them
    bench.finish_jobs("tier-park")
    bench.step()
    assert stayed(bench, "touched") == 1
    assert bench.value("pagoda_parked_sessions_total") == 0
    bench.run()
    bench.assert_baseline()


def test_a_session_that_was_evicted_while_it_is_looked_up_is_nobodys_loss():
    bench, _ = bench_of(num_pages=8)
    bench.complete(prompt_of(1))
    settle(bench)
    bench.clock.now += IDLE
    bench.step()
    name = bench.submit([40] * 29)
    bench.step(3)
    bench.finish_jobs()
    bench.run(name)
    bench.run()
    assert bench.value("pagoda_parked_sessions_total") == 0
    bench.assert_baseline()


def test_the_sidecar_is_told_of_parked_sessions_and_of_preempted_requests():
    bench, tiers = bench_of(num_pages=16)
    bench.complete(prompt_of(1))
    settle(bench)
    leaf = max(tiers.records.values(), key=lambda record: record.index).address
    settle(bench, IDLE)
    reporter = bench.engine._below.reporter
    assert reporter.flush()
    assert tiers.parked == [leaf]
    names = [bench.submit(prompt_of(number), max_tokens=30) for number in (2, 3)]
    bench.run(*names)
    assert bench.engine.stats().num_preemptions > 0
    tiers.parked.clear()
    assert reporter.flush()
    preempted = [tiers.records[address] for address in tiers.parked]
    assert preempted
    assert all(record.index >= 2 for record in preempted)


def test_what_was_parked_during_an_outage_of_reports_is_told_after_it():
    bench, tiers = bench_of()
    bench.complete(prompt_of(1))
    settle(bench)
    settle(bench, IDLE)
    reporter = bench.engine._below.reporter
    tiers.is_failing = True
    assert not reporter.flush()
    tiers.is_failing = False
    assert reporter.flush()
    assert len(tiers.parked) == 1


def test_a_look_is_bounded_whatever_waits():
    bench, tiers = bench_of(num_pages=256)
    for number in range(30):
        bench.complete([number, *[number] * 7, 0])
    settle(bench)
    tiers.lookups.clear()
    bench.clock.now += IDLE
    bench.step()
    assert len([job for job in bench.jobs if job.kind == "tier-park"]) == 4
    bench.step()
    assert len(bench.jobs) == 4
    settle(bench, rounds=12)
    assert cached(bench) == 0
    assert len(tiers.lookups) == 30


def test_the_engine_sleeps_until_a_session_is_due_and_does_not_spin_on_one_that_cannot_go():
    bench, tiers = bench_of()
    parking = bench.engine._below.parking
    assert parking.seconds_to_wait() is None
    bench.complete(prompt_of(1))
    settle(bench)
    assert parking.seconds_to_wait() == 1.0
    bench.clock.now += IDLE - 1.5
    assert 0 < parking.seconds_to_wait() < 1.0
    tiers.attached = False
    bench.clock.now += 1.5
    bench.step()
    assert parking.seconds_to_wait() >= 0.05


def test_sessions_that_come_and_go_leave_no_trace():
    bench, _ = bench_of(num_pages=8)
    for number in range(40):
        bench.complete([number, *[number] * 11, 0])
        settle(bench, rounds=1)
    parking = bench.engine._below.parking
    assert len(parking._leaves) + len(parking._sessions) <= 8
