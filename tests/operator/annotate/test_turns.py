"""Who is written when, in virtual time."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from pagoda_operator.annotate.turns import POD_SECONDS, WRITES_PER_SECOND, Change, Turns


def small(steps: int = 1) -> Change:
    return Change(False, steps)


def run_through(turns: Turns, now: float, until: float) -> list[tuple[float, str]]:
    written = []
    while (at := turns.next_at()) is not None and at < until:
        now = max(now, at)
        uid = turns.take(now)
        assert uid is not None, "next_at promised somebody"
        written.append((now, uid))
    return written


def test_the_largest_change_goes_first() -> None:
    turns = Turns()
    for uid, steps in (("a", 3), ("b", 9), ("c", 5)):
        turns.wait(uid, small(steps))
    assert [uid for _, uid in run_through(turns, 0.0, 1.0)] == ["b", "c", "a"]


def test_another_epoch_goes_before_any_other_change() -> None:
    turns = Turns()
    turns.wait("large", small(1000))
    turns.wait("epoch", Change(True, 1))
    assert [uid for _, uid in run_through(turns, 0.0, 1.0)] == ["epoch", "large"]


def test_a_pod_is_written_once_in_thirty_seconds_however_much_changes() -> None:
    turns = Turns()
    times = []
    for second in range(100):
        turns.wait("a", small(second + 1))
        times += [at for at, _ in run_through(turns, float(second), second + 1.0)]
    assert [round(at) for at in times] == [0, 30, 60, 90]


def test_another_epoch_does_not_wait_for_the_pods_thirty_seconds() -> None:
    turns = Turns()
    turns.wait("a", small())
    assert turns.take(0.0) == "a"
    turns.wait("a", Change(True, 1))
    assert turns.take(1.0) == "a"


def test_a_thousand_pods_are_written_no_faster_than_twenty_a_second() -> None:
    turns = Turns()
    for number in range(1000):
        turns.wait(str(number), Change(number % 2 == 0, number))
    written = run_through(turns, 0.0, 100.0)
    assert len(written) == 1000
    for index, (at, _) in enumerate(written[WRITES_PER_SECOND:]):
        assert at - written[index][0] >= 1.0 - 1e-9  # any twenty-one span a second


def test_a_pod_that_was_annotated_by_a_predecessor_waits_as_if_that_were_now() -> None:
    turns = Turns()
    turns.known_written("a", 10.0)
    turns.known_written("a", 35.0)  # seen again; the time counts from the first
    turns.wait("a", small())
    assert turns.take(39.0) is None
    assert turns.take(10.0 + POD_SECONDS) == "a"


def test_who_is_settled_or_gone_is_not_written() -> None:
    turns = Turns()
    for uid in ("a", "b"):
        turns.wait(uid, small())
    turns.settle("a")
    turns.forget("b")
    assert turns.next_at() is None
    assert turns.take(100.0) is None
    assert len(turns) == 0


GAPS = st.floats(0, 0.05) | st.floats(0, 5)
CHANGES = st.lists(st.tuples(GAPS, st.integers(0, 5), st.booleans(), st.integers(1, 9)), max_size=200)


@given(CHANGES, st.booleans())
def test_both_limits_hold_whatever_comes(changes: list[tuple[float, int, bool, int]], with_epochs: bool) -> None:
    turns, now = Turns(), 0.0
    written: list[tuple[float, str]] = []
    for gap, pod, is_epoch, steps in changes:
        now += gap
        turns.wait(str(pod), Change(with_epochs and is_epoch, steps))
        if (uid := turns.take(now)) is not None:
            written.append((now, uid))
    times = [at for at, _ in written]
    pairs = zip(times, times[WRITES_PER_SECOND:], strict=False)
    assert all(later - sooner >= 1.0 for sooner, later in pairs)  # any twenty-one span a second
    for uid in {} if with_epochs else {uid for _, uid in written}:
        own = [at for at, of in written if of == uid]
        assert all(later - sooner >= POD_SECONDS for sooner, later in itertools.pairwise(own))
