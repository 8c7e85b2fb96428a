"""What differs and what does not, on the real children of pools and on what the API server makes of manifests."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_operator.compare import APPLIED_ANNOTATION, TEMPLATE_ANNOTATION, difference, digest, stamp
from pagoda_protocol.pool.spec import parse_pool
from tests.operator.children.pools import MANAGED, POD_TEMPLATE, children_of, manifest

Json = dict[str, Any]
POOL = parse_pool(
    manifest(
        "chat",
        {
            "engine": {"resources": {"limits": {"memory": "4Gi", "cpu": 2}}, "podTemplate": POD_TEMPLATE},
            "cache": {"ram": {"size": "1Gi"}, "disk": {"size": "1Gi", "storageClassName": "fast"}, "pool": MANAGED},
        },
    )
)
CHILDREN = [stamp(child) for child in children_of(POOL).values()]
# The API server leaves these out, so that whoever looks finds nothing to tell.
UNTOLD = (None, "", [], {})


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if entries is None:
        yield path
        return
    for key, below in entries:
        yield from leaves(below, (*path, key))


def changed(manifest: Json, path: tuple[str | int, ...], value: Any) -> Json:
    made = copy.deepcopy(manifest)
    place: Any = made
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return made


PLACES = [(child, path) for child in CHILDREN for path in leaves(child)]


def value_at(manifest: Json, path: tuple[str | int, ...]) -> Any:
    for key in path:
        manifest = manifest[key]  # type: ignore[index]
    return manifest


@pytest.mark.parametrize("child", CHILDREN, ids=lambda child: f"{child['kind']}-{child['metadata']['name']}")
def test_a_child_that_is_as_wanted_differs_in_nothing(child: Json) -> None:
    assert difference(child, copy.deepcopy(child)) is None


@given(st.sampled_from(PLACES))
def test_a_change_of_any_field_of_any_child_is_found(place: tuple[Json, tuple[str | int, ...]]) -> None:
    child, path = place
    assert difference(child, changed(child, path, "somebody else's")) is not None


@given(st.sampled_from(PLACES))
def test_the_loss_of_any_field_of_any_child_is_found(place: tuple[Json, tuple[str | int, ...]]) -> None:
    child, path = place
    value = value_at(child, path)
    is_told = value not in UNTOLD and value is not False and value != 0
    is_default = (path[-1], value) in {("protocol", "TCP"), ("apiVersion", "v1")}
    if is_told and not is_default:
        assert difference(child, changed(child, path, None)) is not None


WORKLOAD: Json = {
    "spec": {
        "replicas": 2,
        "template": {
            "spec": {
                "containers": [{"name": "engine", "resources": {"limits": {"memory": "1024Mi", "cpu": "1000m"}}}],
                "volumes": [{"name": "arena", "emptyDir": {"medium": "Memory", "sizeLimit": "80Mi"}}],
            }
        },
    }
}


def observed(**container: Any) -> Json:
    made = copy.deepcopy(WORKLOAD)
    made["spec"]["template"]["spec"]["containers"][0] |= container
    return made


@pytest.mark.parametrize(
    "there",
    [
        observed(resources={"limits": {"memory": "1Gi", "cpu": "1"}}),
        observed(resources={"limits": {"memory": 1 << 30, "cpu": 1}}),
        observed(terminationMessagePath="/dev/termination-log"),
        {**observed(), "status": {"replicas": 2}},
    ],
    ids=["another form of a quantity", "quantities as numbers", "a default", "a status"],
)
def test_what_the_api_server_does_to_a_manifest_is_no_difference(there: Json) -> None:
    assert difference(WORKLOAD, there) is None


def test_what_others_put_beside_ours_into_merged_lists_is_no_difference() -> None:
    there = observed(env=[{"name": "INJECTED", "value": "1"}])
    there["spec"]["template"]["spec"]["containers"].insert(0, {"name": "mesh-proxy"})
    assert difference(WORKLOAD, there) is None


@pytest.mark.parametrize(
    ("wanted", "there", "path"),
    [
        ({"spec": {"replicas": 2}}, {"spec": {"replicas": 3}}, "spec.replicas"),
        ({"limits": {"nvidia.com/gpu": 1}}, {"limits": {"nvidia.com/gpu": "2"}}, "limits.nvidia.com/gpu"),
        ({"selector": {"a": "b"}}, {"selector": {"a": "b", "c": "d"}}, "selector.c"),
        ({"ingress": []}, {"ingress": [{}]}, "ingress"),
        ({"ingress": [{"from": [{"podSelector": {}}]}]}, {"ingress": [{"from": [{}, {}]}]}, "ingress.0.from"),
        (
            {"rules": [{"verbs": ["get"]}]},
            {"rules": [{"verbs": ["get"], "resourceNames": ["a"]}]},
            "rules.0.resourceNames",
        ),
        ({"env": [{"name": "A", "value": "1"}]}, {"env": []}, "env.A"),
        ({"automount": False}, {}, "automount"),
        ({"flag": True}, {"flag": 1}, "flag"),
        ({"command": ["a", "b"]}, {"command": ["b", "a"]}, "command.0"),
    ],
)
def test_a_difference_is_named_by_the_path_of_its_field(wanted: Json, there: Json, path: str) -> None:
    assert difference(wanted, there) == path


@pytest.mark.parametrize(
    ("wanted", "there"),
    [
        ({"limits": {"nvidia.com/gpu": 1}}, {"limits": {"nvidia.com/gpu": "1"}}),
        ({"ports": [{"port": 80}]}, {"ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}]}),
        ({"ingress": [{"ports": [{"port": 1}]}]}, {"ingress": [{"ports": [{"port": 1, "protocol": "TCP"}]}]}),
        ({"readOnly": False, "emptyDir": {}, "egress": [], "value": ""}, {}),
    ],
)
def test_forms_that_mean_the_same_are_no_difference(wanted: Json, there: Json) -> None:
    assert difference(wanted, there) is None


def test_marks_tell_manifests_and_templates_apart_and_nothing_else() -> None:
    deployment = children_of(POOL)["Deployment", "chat-engine"]
    stamped = stamp(deployment)
    scaled = stamp({**deployment, "spec": {**deployment["spec"], "replicas": 9}})
    marks = [
        (each["metadata"]["annotations"][APPLIED_ANNOTATION], each["spec"]["template"]["metadata"]["annotations"])
        for each in (stamped, scaled)
    ]
    assert marks[0][0] != marks[1][0], "another manifest"
    assert marks[0][1] == marks[1][1], "the same template: scaling restarts nothing"
    assert marks[0][1][TEMPLATE_ANNOTATION] == digest(deployment["spec"]["template"])
    assert APPLIED_ANNOTATION not in deployment["metadata"].get("annotations", {}), "what was given stays as it was"


def test_the_mark_of_a_template_is_the_same_from_release_to_release() -> None:
    container = {
        "name": "engine",
        "args": ["--model-path", "/Ünïcode"],
        "ports": [{"containerPort": 8000}],
        "stdin": True,
    }
    template = {"spec": {"containers": [container], "nodeSelector": None}, "metadata": {"labels": {"b": "1", "a": "2"}}}
    stamped = stamp({"kind": "Deployment", "metadata": {"name": "chat"}, "spec": {"template": template}})
    mark = stamped["spec"]["template"]["metadata"]["annotations"]["pagoda-kv.io/template"]
    assert mark == "e8e092f162fe8f1387203518d9473c7f", (
        "another way to hash rolls every pod of every pool at the next upgrade"
    )
