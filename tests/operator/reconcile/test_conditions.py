"""The conditions: a table of what can be, and what must never be said of it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_operator.conditions import MAX_MESSAGE, judge
from pagoda_operator.evidence import Condition, Evidence
from tests.operator.reconcile.condition_cases import CASES, UNTOLD, WELL
from tests.operator.reconcile.objects import OLD, Said, evidence, pod, said, workload

ALL = ["Ready", "Progressing", "Degraded", "CacheReady", "PoolReady", "RoutingReady"]


def told(found: Evidence) -> dict[str, Condition]:
    return {condition.type: condition for condition in judge(found)}


def short(found: Evidence) -> dict[str, str]:
    return {kind: f"{condition.status} {condition.reason}" for kind, condition in told(found).items()}


@pytest.mark.parametrize("case", CASES)
def test_conditions(case: str) -> None:
    found, changes = CASES[case]
    assert short(found) == WELL | changes


@pytest.mark.parametrize("case", CASES)
def test_every_reason_is_in_the_documentation(case: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "conditions.md").read_text("utf-8")
    missing = {condition.reason for condition in judge(CASES[case][0]) if f"`{condition.reason}`" not in page}
    assert not missing


@pytest.mark.parametrize("case", CASES)
def test_all_conditions_are_told_at_once_with_a_reason_and_a_message(case: str) -> None:
    conditions = judge(CASES[case][0])
    assert [condition.type for condition in conditions] == ALL
    assert all(condition.reason.isalnum() and condition.reason[0].isupper() for condition in conditions)
    assert all(0 < len(condition.message) <= MAX_MESSAGE for condition in conditions)


@pytest.mark.parametrize(
    ("case", "kind", "words"),
    [
        ("the first new pod is ready beside the old ones", "Ready", "1 of 2 pods updated"),
        ("a bad image beside old pods that serve", "Ready", "no such image"),
        ("the deadline has passed", "Degraded", "timed out progressing; mend what"),
        ("the deadline has passed", "Degraded", "ImagePullBackOff: e-new: container engine: no such image"),
        ("pods that cannot be made", "Degraded", "a pod is forbidden: exceeded quota"),
        ("nodes that cannot be made", "Degraded", "memcached: pods cannot be made, 1 of 3 are there; kubectl describe"),
        ("a pod is pending", "Degraded", "spec.engine.resources.limits.memory"),
        ("a tier's proof failed", "CacheReady", "e-1: a block's round trip through tier ram failed: torn"),
        ("a tier is off", "CacheReady", "tier disk is off: full"),
        ("a node is down", "PoolReady", "memcached node m-1 is down: refused"),
        ("a sidecar says nothing", "CacheReady", "e-1: the sidecar does not answer: status 503"),
        ("an engine follows older live settings", "Ready", "e-1: it follows live settings of generation 2, not yet 3"),
        ("an engine drains", "Ready", "e-1: draining"),
        ("the spec is refused", "Degraded", "spec.replicas: is a string"),
        ("no tier is asked for", "CacheReady", "spec.cache.ram"),
    ],
)
def test_messages_name_what_a_person_has_to_look_at(case: str, kind: str, words: str) -> None:
    assert words in told(CASES[case][0])[kind].message


def remembered(*conditions: tuple[str, str, str]) -> dict[str, Condition]:
    return {kind: Condition(kind, status, reason, f"why {kind}") for kind, status, reason in conditions}


def test_after_a_change_of_leader_the_last_word_about_this_generation_stands_until_pods_have_spoken() -> None:
    before = remembered(
        ("Ready", "True", "Serving"), ("Progressing", "False", "Complete"), ("CacheReady", "True", "Proved"),
        ("PoolReady", "False", "NodeDown"),
    )  # fmt: skip
    found = told(evidence(reports={}, before=before))
    assert (found["Ready"].status, found["Progressing"].status) == ("True", "False")
    assert found["CacheReady"] == before["CacheReady"]
    assert found["PoolReady"] == before["PoolReady"]
    assert (found["Degraded"].reason, found["Degraded"].message) == ("NodeDown", "NodeDown: why PoolReady")


def test_an_engine_that_does_not_answer_leaves_the_last_word_as_one_that_was_not_asked_does() -> None:
    mute = Said(ready=None, generation=None, reason="silent", summary=said(pool="ok").summary)
    reports = {"e-0": said(pool="ok"), "e-1": mute}
    before = remembered(
        ("Ready", "True", "Serving"), ("Progressing", "False", "Complete"), ("CacheReady", "True", "Proved"),
        ("PoolReady", "True", "Proved"),
    )  # fmt: skip
    assert short(evidence(reports=reports, before=before)) == WELL | {"PoolReady": "True Proved"}
    assert short(evidence(reports=reports)) == WELL | UNTOLD | {
        "Ready": "False NotProven", "Progressing": "True Proving",
    }  # fmt: skip


def test_what_pods_say_beats_what_was_said_before() -> None:
    before = remembered(
        ("Ready", "True", "Serving"), ("CacheReady", "False", "TierOff"), ("PoolReady", "False", "NodeDown")
    )
    assert short(evidence(before=before)) == WELL
    late = evidence(before=before, reports={"e-0": said(), "e-1": said(generation=2)})
    assert told(late)["Ready"].status == "False"


def test_the_last_word_is_worth_nothing_where_the_cluster_shows_otherwise() -> None:
    before = remembered(("Ready", "True", "Serving"), ("CacheReady", "True", "Proved"))
    found = short(evidence(reports={}, before=before, engine=workload("engine", pod("e-0"), pod("e-1", ready=False))))
    assert (found["Ready"], found["CacheReady"]) == ("False PodsNotReady", "Unknown NotProven")


PODS = st.lists(
    st.tuples(st.booleans(), st.booleans(), st.sampled_from([None, "proven", "old settings", "no token", "not ready"])),
    max_size=4,
)
WORDS = {
    "proven": said(), "old settings": said(generation=2), "no token": said(proof={"generated": False, "tiers": {}}),
    "not ready": said(ready=False, reason="warming up"),
}  # fmt: skip


@given(PODS, st.integers(1, 4), st.booleans(), st.integers(0, 4), st.lists(st.booleans(), max_size=2), st.booleans())
def test_k9_ready_is_never_ahead_of_reality(
    engines: list[tuple[bool, bool, str | None]],
    desired: int,
    seen: bool,
    updated: int,
    routers: list[bool],
    router_seen: bool,
) -> None:
    pods = [
        pod(f"e-{index}", template="new-template" if is_new else OLD, ready=ready)
        for index, (is_new, ready, _) in enumerate(engines)
    ]
    found = evidence(
        engine=workload("engine", *pods, desired=desired, seen=seen, updated=updated),
        router=workload(
            "router", *(pod(f"r-{i}", "router", ready=ready) for i, ready in enumerate(routers)), seen=router_seen
        ),
        reports={f"e-{index}": WORDS[words] for index, (_, _, words) in enumerate(engines) if words},
    )
    is_proven = (
        seen
        and updated >= desired == len(engines)
        and all(is_new and ready and words == "proven" for is_new, ready, words in engines)
        and router_seen
        and any(routers)
    )
    conditions = told(found)
    assert (conditions["Ready"].status == "True") == is_proven
    if conditions["CacheReady"].status == "True":
        assert seen
        assert all(is_new and ready for is_new, ready, _ in engines)
    if is_proven:
        assert conditions["Progressing"].status == ("False" if all(routers) else "True")
