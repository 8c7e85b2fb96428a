"""The status as a mapping: when it changes and when it does not, and which changes are events."""

import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_operator.events import transitions
from pagoda_operator.evidence import Evidence
from pagoda_operator.status import make_status, timestamp
from tests.operator.reconcile.objects import OLD, evidence, pod, said, workload

Json = dict[str, Any]
NOON, ONE = "2026-01-01T12:00:00Z", "2026-01-01T13:00:00Z"


def status(found: Evidence, before: Json | None = None, now: str = NOON, model: str | None = "m") -> Json:
    return make_status("chat", model, found, before or {}, now)


def with_ratios(*ratios: float | None) -> Evidence:
    pods = [pod(f"e-{index}") for index in range(len(ratios))]
    reports = {f"e-{index}": said(summary={"hit_ratio": ratio}) for index, ratio in enumerate(ratios)}
    return evidence(engine=workload("engine", *pods), reports=reports)


def hit_rate(found: Evidence, before: str | None = None) -> str | None:
    rate = status(found, {} if before is None else {"cache": {"hitRate": before}}).get("cache", {}).get("hitRate")
    return None if rate is None else str(rate)


def test_numbers_are_of_pods_and_not_of_what_controllers_call_ready() -> None:
    found = status(
        evidence(engine=workload("engine", pod("a"), pod("b", ready=False), pod("c", template=OLD), desired=2))
    )
    numbers = {key: found[key] for key in ("replicas", "desiredReplicas", "updatedReplicas", "readyReplicas")}
    assert numbers == {"replicas": 3, "desiredReplicas": 2, "updatedReplicas": 2, "readyReplicas": 2}
    assert found["selector"] == "pagoda-kv.io/pool=chat,pagoda-kv.io/part=engine"
    assert (found["observedGeneration"], found["model"]) == (3, "m")


def test_every_condition_is_of_the_generation_that_was_looked_at() -> None:
    assert {entry["observedGeneration"] for entry in status(evidence())["conditions"]} == {3}


def test_where_nothing_changes_the_status_is_the_same_at_any_time() -> None:
    first = status(with_ratios(0.81))
    assert status(with_ratios(0.81), first, ONE) == first


def test_a_time_changes_with_its_own_condition_alone() -> None:
    first = status(evidence())
    second = status(evidence(reports={"e-0": said(), "e-1": said(ram="failed: torn")}), first, ONE)
    changed = {entry["type"] for entry in second["conditions"] if entry["lastTransitionTime"] == ONE}
    assert changed == {"CacheReady", "Degraded"}


def test_another_reason_or_generation_changes_no_time() -> None:
    first = status(evidence(reports={}))
    second = status(evidence(reports={}, generation=4, engine=workload("engine", pod("a", template=OLD))), first, ONE)
    assert next(iter(first["conditions"]))["reason"] != next(iter(second["conditions"]))["reason"]
    assert next(iter(second["conditions"]))["lastTransitionTime"] == NOON


def test_a_model_that_is_not_known_stays_what_it_was() -> None:
    assert status(evidence(), {"model": "old"}, model=None)["model"] == "old"
    assert "model" not in status(evidence(), model=None)


@pytest.mark.parametrize(
    ("ratios", "before", "rate"),
    [
        ((0.81,), None, "80%"),
        ((0.82,), None, "82.5%"),
        ((0.0,), None, "0%"),
        ((1.0,), None, "100%"),
        ((0.5, 1.0, None), None, "75%"),
        ((None,), None, None),
        ((None,), "80%", None),
        ((), None, None),
        ((0.8125,), "80%", "80%"),
        ((0.8249,), "80%", "80%"),
        ((0.826,), "80%", "82.5%"),
        ((0.776,), "80%", "80%"),
        ((0.81,), "whatever somebody wrote", "80%"),
        ((0.81,), "nan%", "80%"),
    ],
)
def test_the_hit_rate_is_coarse_and_absent_is_not_zero(
    ratios: tuple[float | None, ...], before: str | None, rate: str | None
) -> None:
    assert hit_rate(with_ratios(*ratios), before) == rate


def test_a_hit_rate_stays_while_a_new_leader_has_asked_nobody_yet() -> None:
    assert hit_rate(evidence(reports={}), "80%") == "80%"
    assert hit_rate(evidence(engine=workload("engine"), reports={}), "80%") is None


@given(st.lists(st.floats(0.79, 0.81), min_size=1, max_size=30))
def test_a_hit_rate_that_only_trembles_is_written_once(ratios: list[float]) -> None:
    rate, writes = None, 0
    for ratio in ratios:
        now = hit_rate(with_ratios(ratio), rate)
        writes += now != rate
        rate = now
    assert writes == 1


def test_what_is_told_for_the_first_time_is_no_event() -> None:
    assert transitions({}, status(evidence())) == ()


def test_each_condition_that_turns_is_one_event_and_what_stays_is_none() -> None:
    good = status(evidence())
    bad = status(evidence(reports={"e-0": said(), "e-1": said(ram="failed: torn")}), good)
    worse = status(evidence(reports={"e-0": said(), "e-1": said(ram="failed: cut")}), bad)
    down = [(turn.is_warning, turn.reason, turn.action) for turn in transitions(good, bad)]
    assert down == [(True, "TierProofFailed", "DegradedBecameTrue"), (True, "TierProofFailed", "CacheReadyBecameFalse")]
    assert transitions(bad, worse) == (), "another message is no turn"
    up = [(turn.is_warning, turn.action) for turn in transitions(worse, good)]
    assert up == [(False, "DegradedBecameFalse"), (False, "CacheReadyBecameTrue")]


def test_times_are_written_as_kubernetes_does() -> None:
    zone = datetime.timezone(datetime.timedelta(hours=2))
    assert timestamp(datetime.datetime(2026, 1, 1, 14, 0, 0, 5, zone)) == NOON
