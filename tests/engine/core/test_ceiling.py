"""The hit ceiling: real rates lie under it, and at it when nothing is ever forgotten."""

import math
import random

import pytest

from pagoda_engine.core.ceiling import WINDOW_SECONDS, HitCeiling
from tests.engine.core.bench import Bench, Clock
from tests.engine.core.fake_tiers import FakeTiers
from tests.engine.core.oracle import BLOCK_TOKENS
from tests.engine.core.test_distinct import item


def ratios(bench: Bench) -> tuple[float, float]:
    return bench.value("pagoda_hit_ratio"), bench.value("pagoda_hit_ceiling_ratio")


def converse(bench: Bench, num_users: int, num_turns: int) -> None:
    """Conversations on a shared stem, turn about, some turns at once; every answer is in the next prompt."""
    chance = random.Random(7)
    stem = [chance.randrange(50) for _ in range(9)]
    histories = [[*stem, chance.randrange(50)] for _ in range(num_users)]
    for _ in range(num_turns):
        for start in range(0, num_users, 3):
            names = {}
            for user in range(start, min(start + 3, num_users)):
                histories[user] += [chance.randrange(50) for _ in range(chance.randrange(1, 12))]
                names[user] = bench.submit(histories[user], max_tokens=chance.randrange(1, 9))
            bench.run(*names.values())
            for user, name in names.items():
                bench.assert_right(name)
                histories[user] += bench.events[name].tokens


@pytest.mark.parametrize("num_pages", [1200, 24])
def test_the_real_rate_is_the_ceiling_with_room_for_all_and_less_without(num_pages: int) -> None:
    bench = Bench(num_pages)
    converse(bench, num_users=12, num_turns=6)
    real, ceiling = ratios(bench)
    assert 0.4 < ceiling < 0.9
    if num_pages > 1000:
        assert real == pytest.approx(ceiling, abs=0.01)
    else:
        assert real < ceiling - 0.2


def test_tiers_that_keep_all_bring_a_small_device_to_the_ceiling() -> None:
    bench = Bench(24, tiers=FakeTiers())
    converse(bench, num_users=12, num_turns=6)
    real, ceiling = ratios(bench)
    assert real == pytest.approx(ceiling, abs=0.02)


def test_the_last_token_s_block_and_a_partial_one_are_beyond_any_cache() -> None:
    bench = Bench(64)
    prompt = list(range(4 * BLOCK_TOKENS))
    bench.complete(prompt)
    assert ratios(bench) == (0.0, 0.0)
    assert bench.value("pagoda_unavoidable_prompt_tokens_total") == pytest.approx(len(prompt), rel=0.01)
    bench.complete(prompt)
    assert bench.value("pagoda_unavoidable_prompt_tokens_total") == pytest.approx(len(prompt) + BLOCK_TOKENS, rel=0.01)
    real, ceiling = ratios(bench)
    assert real == 3 / 8
    assert ceiling == pytest.approx(3 / 8, abs=0.01)


def test_another_tenants_equal_prompt_is_no_hit_for_any_cache() -> None:
    bench = Bench(64)
    bench.complete(range(21))
    bench.complete(range(21), root=bytes([1]) * 32)
    assert ratios(bench) == (0.0, 0.0)


def test_further_choices_of_a_request_count_neither_way() -> None:
    bench = Bench(64)
    bench.complete(range(21))
    before = bench.value("pagoda_unavoidable_prompt_tokens_total")
    bench.complete(range(21), replay_cause="n")
    assert bench.value("pagoda_unavoidable_prompt_tokens_total") == before
    assert ratios(bench)[0] == 0.0


def test_before_the_first_prompt_there_is_no_rate() -> None:
    assert all(map(math.isnan, ratios(Bench())))


def test_rates_leave_the_window_although_nobody_asks_any_more() -> None:
    bench = Bench(64)
    bench.complete(range(21))
    bench.complete(range(21))
    assert ratios(bench)[0] > 0
    bench.clock.now += 3 * WINDOW_SECONDS
    bench.step()
    assert all(map(math.isnan, ratios(bench)))


def test_an_engine_that_sleeps_wakes_when_the_window_moves_and_only_while_there_are_rates() -> None:
    clock = Clock()
    ceiling = HitCeiling(clock)
    assert ceiling.seconds_to_wait() is None
    ceiling.count(100, 50, 50.0)
    for _ in range(2):
        wait = ceiling.seconds_to_wait()
        assert wait is not None
        assert 0 < wait <= WINDOW_SECONDS / 2
        clock.now += wait
        assert ceiling.seconds_to_wait() == 0.0
        assert ceiling.hit_ratio in (0.5, None)
    assert ceiling.hit_ratio is None
    assert ceiling.seconds_to_wait() is None


def test_what_was_seen_is_remembered_for_half_a_window_at_least_and_a_whole_one_at_most() -> None:
    clock = Clock()
    ceiling = HitCeiling(clock)
    clock.now += 0.4 * WINDOW_SECONDS
    addresses = [item(number) for number in range(50)]

    def first_seen() -> float:
        return ceiling.prompt(addresses, 50, 1)

    assert first_seen() == pytest.approx(50, rel=0.02)
    clock.now += 0.55 * WINDOW_SECONDS  # the next half
    assert first_seen() == 0.0
    clock.now += 0.5 * WINDOW_SECONDS  # seen again in the half before
    assert first_seen() == 0.0
    clock.now += WINDOW_SECONDS
    assert first_seen() == pytest.approx(50, rel=0.02)


def test_rates_are_those_of_the_window() -> None:
    clock = Clock()
    ceiling = HitCeiling(clock)
    ceiling.count(100, 0, 100.0)
    clock.now += 0.6 * WINDOW_SECONDS
    ceiling.count(100, 80, 25.0)
    assert (ceiling.hit_ratio, ceiling.ceiling_ratio) == (0.4, 0.375)
    clock.now += 0.5 * WINDOW_SECONDS
    ceiling.count(0, 0, 0.0)
    assert (ceiling.hit_ratio, ceiling.ceiling_ratio) == (0.8, 0.75)
    clock.now += 5 * WINDOW_SECONDS
    ceiling.seen(item(1))
    assert (ceiling.hit_ratio, ceiling.ceiling_ratio) == (None, None)
