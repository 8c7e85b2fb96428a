"""Who is asked when, in virtual time."""

import itertools
from collections import Counter

from pagoda_operator.scrape.schedule import Schedule

HOUR = 3600.0


def run_through(
    schedule: Schedule, now: float, until: float, proven: set[str] | None = None
) -> list[tuple[float, str]]:
    """Ask whoever is due until `until`, each answering after 10 ms; without `proven`, everybody is."""
    asked = []
    while (at := schedule.next_at()) is not None and at < until:
        now = max(now, at)
        uid = schedule.take(now)
        assert uid is not None, "next_at promised somebody"
        asked.append((now, uid))
        schedule.answered(uid, now + 0.01, proven is None or uid in proven)
    return asked


def test_a_new_pod_is_asked_at_once_and_a_proven_one_every_half_minute() -> None:
    schedule = Schedule()
    schedule.ask_now("a", 5.0)
    times = [round(at) for at, _ in run_through(schedule, 5.0, 100.0)]
    assert times == [5, 35, 65, 95]


def test_a_pod_that_has_not_proven_itself_is_asked_every_two_seconds_at_first() -> None:
    schedule = Schedule()
    schedule.ask_now("a", 0.0)
    asked = run_through(schedule, 0.0, 40.0, proven=set())
    assert 18 <= len(asked) <= 21


def test_a_pod_that_never_proves_itself_ends_up_at_the_pace_of_all_others() -> None:
    schedule = Schedule()
    schedule.ask_now("a", 0.0)
    late = [at for at, _ in run_through(schedule, 0.0, 2 * HOUR, proven=set()) if at > HOUR]
    assert 115 <= len(late) <= 121


def test_a_thousand_pods_are_asked_twenty_a_second_each_in_its_turn() -> None:
    schedule = Schedule()
    for number in range(1000):
        schedule.ask_now(str(number), 0.0)
    asked = [entry for entry in run_through(schedule, 0.0, 600.0) if entry[0] >= 100.0]
    assert max(Counter(int(at) for at, _ in asked).values()) <= 21  # a second holds both its ends
    assert set(Counter(uid for _, uid in asked).values()) <= {9, 10, 11}  # 500 s, one look per 50 s


def test_proven_pods_of_the_same_second_are_asked_together() -> None:
    schedule = Schedule()
    for number in range(10):
        schedule.ask_now(str(number), number / 20)
    asked = run_through(schedule, 0.0, 100.0)
    assert [at for at, _ in asked if at > 1.0] == [30.0] * 10 + [60.0] * 10 + [90.0] * 10


def test_a_thousand_pods_that_all_come_up_at_once_are_asked_no_faster_than_the_pace() -> None:
    schedule = Schedule()
    for number in range(1000):
        schedule.ask_now(str(number), 0.0)
    asked = run_through(schedule, 0.0, 120.0, proven=set())
    assert max(Counter(int(at) for at, _ in asked).values()) <= 31
    assert len({uid for at, uid in asked if at < 40.0}) == 1000  # nobody is starved by those asked again


def test_new_pods_do_not_wait_behind_proven_ones() -> None:
    schedule = Schedule()
    for number in range(1000):
        schedule.ask_now(str(number), 0.0)
    run_through(schedule, 0.0, 300.0)
    schedule.ask_now("new", 300.0)
    first = run_through(schedule, 300.0, 301.0)[0]
    assert first[1] == "new"


def test_what_happens_to_a_pod_while_it_is_asked_has_it_asked_again_at_once() -> None:
    schedule = Schedule()
    schedule.ask_now("a", 0.0)
    assert schedule.take(0.0) == "a"
    schedule.ask_now("a", 0.5)
    assert schedule.take(0.6) is None  # not twice at a time
    schedule.answered("a", 1.0, True)
    assert schedule.take(1.0) == "a"


def test_a_forgotten_pod_is_not_asked_even_if_its_answer_comes_later() -> None:
    schedule = Schedule()
    schedule.ask_now("a", 0.0)
    schedule.take(0.0)
    schedule.forget("a")
    schedule.answered("a", 1.0, True)
    assert schedule.next_at() is None
    schedule.ask_now("b", 1.0)
    schedule.forget("b")
    assert schedule.take(2.0) is None
    assert len(schedule) == 0


def test_a_pod_that_is_no_longer_proven_is_asked_soon_again() -> None:
    schedule = Schedule()
    schedule.ask_now("a", 0.0)
    run_through(schedule, 0.0, HOUR)
    asked = run_through(schedule, HOUR, HOUR + 60, proven=set())
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(asked)]
    assert gaps[0] < 2.1
