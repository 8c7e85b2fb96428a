"""The plan: what is done to reach a pool's children from whatever is there."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_operator.changes import NEVER, Delete, Key, Plan, Write, key_of, plan, rolls_pods
from pagoda_operator.compare import stamp
from pagoda_protocol.pool.spec import parse_pool
from tests.operator.children.pools import MANAGED, UID, children_of, manifest

Json = dict[str, Any]
WITH_CACHE = parse_pool(manifest("chat", {"cache": {"ram": {"size": "1Gi"}, "pool": MANAGED}}))
WITHOUT = parse_pool(manifest("chat", {"cache": {"ram": {"size": "1Gi"}}}))
WANTED = tuple(children_of(WITH_CACHE).values())
KEYS = [key_of(child) for child in WANTED]


def there(children: tuple[Json, ...] = WANTED) -> dict[Key, Json]:
    """Return the children as they would be in the cluster."""
    return {
        key_of(child): {**stamp(child), "metadata": {**stamp(child)["metadata"], "uid": "u", "resourceVersion": "7"}}
        for child in copy.deepcopy(children)
    }


def change(observed: dict[Key, Json], key: Key, **metadata: Any) -> None:
    observed[key]["metadata"] |= metadata


def owner(uid: str, name: str = "chat", kind: str = "InferencePool") -> Json:
    return {"apiVersion": "pagoda-kv.io/v1alpha1", "kind": kind, "name": name, "uid": uid, "controller": True}


def only(found: Plan) -> Write | Delete:
    assert len(found.actions) == 1, found.actions
    return found.actions[0]


def test_from_nothing_every_child_is_made_in_the_order_of_rendering_and_nothing_taken_over() -> None:
    found = plan(UID, WANTED, {})
    assert [key_of(action.manifest) for action in found.actions if isinstance(action, Write)] == KEYS
    assert all(action.manifest["metadata"]["resourceVersion"] == NEVER for action in found.actions)  # type: ignore[union-attr]


def test_where_all_is_as_wanted_nothing_is_done() -> None:
    assert plan(UID, WANTED, there()) == Plan(())


@given(st.sets(st.sampled_from(KEYS)))
def test_exactly_the_missing_children_are_made(missing: set[Key]) -> None:
    observed = {key: child for key, child in there().items() if key not in missing}
    made = [key_of(action.manifest) for action in plan(UID, WANTED, observed).actions if isinstance(action, Write)]
    assert made == [key for key in KEYS if key in missing]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_child_that_was_changed_is_written_as_of_the_version_seen(key: Key) -> None:
    observed = there()
    change(observed, key, labels={"pagoda-kv.io/pool": "chat"})
    action = only(plan(UID, WANTED, observed))
    assert isinstance(action, Write)
    assert key_of(action.manifest) == key
    assert action.manifest["metadata"]["resourceVersion"] == "7"
    assert action.why.startswith("metadata.labels.")


def test_a_field_that_is_no_longer_wanted_is_told_by_the_mark_of_what_was_applied() -> None:
    observed = there()
    before = copy.deepcopy(WANTED[-1])
    before["spec"]["minReadySeconds"] = 5
    observed[key_of(before)] |= {"spec": {**before["spec"], "template": observed[key_of(before)]["spec"]["template"]}}
    change(observed, key_of(before), annotations=stamp(before)["metadata"]["annotations"])
    assert only(plan(UID, WANTED, observed)).why == "metadata.annotations.pagoda-kv.io/applied"


@pytest.mark.parametrize("key", KEYS, ids=str)
@pytest.mark.parametrize(
    "owners",
    [[], [owner("other", name="other")], [owner("other", kind="Deployment")], [{**owner(UID), "controller": False}]],
    ids=["nobody's", "another pool's", "a Deployment's", "ours, but not managed by us"],
)
def test_what_is_not_ours_is_left_alone_and_told(key: Key, owners: list[Json]) -> None:
    observed = there()
    change(observed, key, ownerReferences=owners)
    found = plan(UID, WANTED, observed)
    assert found.actions == ()
    assert found.leaving == ()
    (text,) = found.clashes
    assert f"{key[0]} {key[1]}" in text


def test_what_an_earlier_pool_of_this_name_left_is_waited_for() -> None:
    observed = there()
    change(observed, KEYS[0], ownerReferences=[owner("former")])
    found = plan(UID, WANTED, observed)
    assert (found.actions, found.clashes) == ((), ())
    assert "earlier pool" in found.leaving[0]


def test_a_child_on_its_way_out_is_waited_for() -> None:
    observed = there()
    change(observed, KEYS[0], deletionTimestamp="2026-01-01T00:00:00Z")
    found = plan(UID, WANTED, observed)
    assert found.actions == ()
    assert found.leaving == (f"{KEYS[0][0]} {KEYS[0][1]} is being deleted",)


def test_children_that_are_no_longer_wanted_are_deleted_last_and_nothing_else_is() -> None:
    wanted = tuple(children_of(WITHOUT).values())
    observed = there()
    stranger = {**observed[KEYS[0]], "metadata": {**observed[KEYS[0]]["metadata"], "name": "strange"}}
    stranger["metadata"]["ownerReferences"] = [owner("other")]
    observed["ServiceAccount", "strange"] = stranger
    found = plan(UID, wanted, observed)
    deleted = [action for action in found.actions if isinstance(action, Delete)]
    assert found.actions[-len(deleted) :] == tuple(deleted), "after all writes"
    assert {key_of(action.observed) for action in deleted} == set(KEYS) - {key_of(child) for child in wanted}
    assert all(action.observed["metadata"]["resourceVersion"] == "7" for action in deleted)


def deployment(observed: Mapping[Key, Json]) -> Json:
    return observed["Deployment", "chat-engine"]


def test_a_deployment_with_another_selector_is_deleted_and_its_pods_serve_until_the_new_one_adopts_them() -> None:
    observed = there()
    deployment(observed)["spec"]["selector"]["matchLabels"]["more"] = "x"
    deployment(observed)["spec"]["template"]["metadata"]["labels"]["more"] = "x"
    action = only(plan(UID, WANTED, observed))
    assert isinstance(action, Delete)
    assert (action.why, action.keeps_pods) == ("spec.selector cannot be changed in place", True)


def test_pods_that_the_new_deployment_could_not_adopt_go_with_the_old_one() -> None:
    observed = there()
    deployment(observed)["spec"]["selector"] = {"matchLabels": {"app": "x"}}
    deployment(observed)["spec"]["template"]["metadata"]["labels"] = {"app": "x"}
    action = only(plan(UID, WANTED, observed))
    assert isinstance(action, Delete)
    assert not action.keeps_pods


@pytest.mark.parametrize(
    ("key", "spec"),
    [
        (("StatefulSet", "chat-memcached"), {"serviceName": "other"}),
        (("StatefulSet", "chat-memcached"), {"podManagementPolicy": "OrderedReady"}),
        (("StatefulSet", "chat-memcached"), {"volumeClaimTemplates": [{"metadata": {"name": "data"}}]}),
        (("Service", "chat-engine"), {"clusterIP": "10.0.0.1"}),
        (("Service", "chat-router"), {"clusterIP": "None"}),
    ],
)
def test_what_cannot_be_changed_in_place_is_made_anew(key: Key, spec: Json) -> None:
    observed = there()
    observed[key]["spec"] |= spec
    action = only(plan(UID, WANTED, observed))
    assert isinstance(action, Delete)
    assert action.is_wanted
    assert key_of(action.observed) == key
    (name,) = spec
    assert action.why == f"spec.{name} cannot be changed in place"


def test_an_immutable_config_map_and_another_role_are_made_anew() -> None:
    observed = there()
    observed["ConfigMap", "chat-live"] |= {"immutable": True, "data": {}}
    observed["RoleBinding", "chat-router"]["roleRef"]["name"] = "admin"
    found = plan(UID, WANTED, observed)
    assert {key_of(action.observed) for action in found.actions if isinstance(action, Delete)} == {
        ("ConfigMap", "chat-live"),
        ("RoleBinding", "chat-router"),
    }


def test_the_address_of_a_service_is_the_clusters_matter() -> None:
    observed = there()
    observed["Service", "chat-router"]["spec"] |= {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"]}
    assert plan(UID, WANTED, observed) == Plan(())


def test_only_another_template_replaces_pods() -> None:
    observed = there()
    scaled, other = copy.deepcopy(WANTED[-1]), copy.deepcopy(WANTED[-1])
    scaled["spec"]["replicas"] += 1
    other["spec"]["template"]["spec"]["containers"][0]["image"] = "example.com/other:1"
    assert not rolls_pods(only(plan(UID, (*WANTED[:-1], scaled), observed)), observed)
    assert rolls_pods(only(plan(UID, (*WANTED[:-1], other), observed)), observed)
    assert not rolls_pods(plan(UID, WANTED, {}).actions[-1], {}), "there are no pods to replace"
