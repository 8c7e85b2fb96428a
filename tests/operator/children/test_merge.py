"""`podTemplate`: wishes are added to the engine's pod, what is the operator's stays."""

import copy
from typing import Any

import pytest

from pagoda_protocol.pool import pod_shapes
from pagoda_protocol.pool.spec import SpecError, parse_pool
from tests.operator.children.pools import MANIFESTS, POD_TEMPLATE, POOLS, children_of, containers_of, templates_of


def pool_with(name: str = "least", **pod_template: Any) -> Any:
    document = copy.deepcopy(MANIFESTS[name])
    document["spec"]["engine"]["podTemplate"] = pod_template
    return parse_pool(document)


def test_every_wish_stands_in_the_engines_pod_and_nothing_of_the_operators_is_gone() -> None:
    with_wishes = templates_of(POOLS["gpus"])["engine"]
    document = copy.deepcopy(MANIFESTS["gpus"])
    del document["spec"]["engine"]["podTemplate"]
    without = templates_of(parse_pool(document))["engine"]
    engine, bare_engine = (containers_of(template)["engine"] for template in (with_wishes, without))
    assert engine["env"] == [*bare_engine["env"], *POD_TEMPLATE["env"]]
    assert engine["volumeMounts"] == [*bare_engine["volumeMounts"], *POD_TEMPLATE["volumeMounts"]]
    assert {key: value for key, value in engine.items() if key not in ("env", "volumeMounts")} == {
        key: value for key, value in bare_engine.items() if key not in ("env", "volumeMounts")
    }
    assert containers_of(with_wishes)["sidecar"] == containers_of(without)["sidecar"]
    for key in ("nodeSelector", "tolerations", "affinity", "topologySpreadConstraints", "priorityClassName"):
        assert with_wishes["spec"][key] == POD_TEMPLATE[key]
    assert with_wishes["spec"]["runtimeClassName"] == "nvidia"
    assert with_wishes["metadata"]["labels"] == {"team": "chat", **without["metadata"]["labels"]}
    assert with_wishes["metadata"]["annotations"] == POD_TEMPLATE["annotations"]
    assert [volume["name"] for volume in with_wishes["spec"]["volumes"]][-2:] == ["weights", "scratch"]


def test_wishes_are_the_engines_alone() -> None:
    assert [templates_of(POOLS["gpus"])[part] for part in ("router",)] == [
        templates_of(parse_pool({**MANIFESTS["gpus"], "spec": _without_wishes()}))["router"]
    ]


def _without_wishes() -> dict[str, Any]:
    spec = copy.deepcopy(MANIFESTS["gpus"]["spec"])
    del spec["engine"]["podTemplate"]
    return spec


def test_an_empty_template_changes_nothing() -> None:
    assert children_of(pool_with()) == children_of(POOLS["least"])


def test_a_size_is_written_as_the_api_server_stores_it() -> None:
    scratch = templates_of(POOLS["gpus"])["engine"]["spec"]["volumes"][-1]
    claim = scratch["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert claim["resources"]["requests"]["storage"] == "2Gi"


VOLUME = {"name": "mine", "configMap": {"name": "mine"}}


@pytest.mark.parametrize("name", POOLS)
def test_all_that_the_operator_sets_in_an_engines_pod_is_reserved(name: str) -> None:
    """Otherwise a wish of the same name would have to be merged with it."""
    document = copy.deepcopy(MANIFESTS[name])
    document["spec"]["engine"].pop("podTemplate", None)
    template = templates_of(parse_pool(document))["engine"]
    for volume in template["spec"]["volumes"]:
        assert volume["name"].startswith(pod_shapes.RESERVED_VOLUMES)
    for label in template["metadata"]["labels"]:
        assert label.startswith(pod_shapes.RESERVED_LABELS)
    engine = containers_of(template)["engine"]
    for variable in engine["env"]:
        with pytest.raises(SpecError, match="env"):
            pool_with(env=[{"name": variable["name"], "value": "1"}])
    for place in engine["volumeMounts"]:
        with pytest.raises(SpecError, match="mountPath"):
            pool_with(volumes=[VOLUME], volumeMounts=[{"name": "mine", "mountPath": place["mountPath"]}])
