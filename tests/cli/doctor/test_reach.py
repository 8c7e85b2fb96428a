"""NetworkPolicies as networking.k8s.io/v1 says they work."""

from typing import Any

import pytest

from pagoda_cli.doctor.reach import Endpoint, Flow, blockers, selects

ROUTER = Endpoint("shop", {"part": "router"}, {"team": "chat"})
ENGINE = Endpoint("shop", {"part": "engine"}, {"team": "chat"})
OPERATOR = Endpoint("pagoda", {"app": "operator"}, {"team": "platform"})


def policy(spec: dict[str, Any], namespace: str = "shop") -> dict[str, Any]:
    return {"metadata": {"name": "p", "namespace": namespace}, "spec": {"podSelector": {}} | spec}


def ingress(*rules: Any, **spec: Any) -> dict[str, Any]:
    return policy({"policyTypes": ["Ingress"], "ingress": list(rules)} | spec)


def peer(**selectors: Any) -> dict[str, Any]:
    return {"from": [{key: {"matchLabels": labels} for key, labels in selectors.items()}]}


def port(**fields: Any) -> dict[str, Any]:
    return {"ports": [fields]}


@pytest.mark.parametrize(
    ("policies", "is_open"),
    [
        ([], True),
        ([ingress()], False),  # deny all
        ([ingress({})], True),  # allow all
        ([ingress(), ingress({})], True),  # policies add up
        ([ingress(podSelector={"matchLabels": {"part": "other"}})], True),
        ([policy({"policyTypes": ["Egress"], "egress": []})], False),  # the router is in that namespace too
        ([policy({}, namespace="elsewhere")], True),
        ([policy({"ingress": []})], False),  # without types a policy is of type Ingress
        ([policy({"egress": [{}]})], False),  # and of Egress too if it has rules for it
        ([ingress(peer(podSelector={"part": "router"}))], True),
        ([ingress(peer(podSelector={"part": "nobody"}))], False),
        ([ingress(peer(namespaceSelector={"team": "chat"}))], True),
        ([ingress(peer(namespaceSelector={"team": "other"}))], False),
        ([ingress(peer(namespaceSelector={"kubernetes.io/metadata.name": "shop"}))], True),
        ([ingress(peer(namespaceSelector={"team": "chat"}, podSelector={"part": "router"}))], True),
        ([ingress(peer(namespaceSelector={"team": "chat"}, podSelector={"part": "nobody"}))], False),
        ([ingress({"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]})], True),  # cannot be told, so it is no sure gap
        ([ingress({"from": []})], True),  # an empty list of peers is everybody
        ([ingress(port(port=8000))], True),
        ([ingress(port(port=9000))], False),
        ([ingress(port(port="http"))], True),
        ([ingress(port(port="metrics"))], False),
        ([ingress(port(port=7000, endPort=9000))], True),
        ([ingress(port(port=7000, endPort=7999))], False),
        ([ingress(port(port=8000, protocol="UDP"))], False),
        ([ingress(port(protocol="TCP"))], True),
        ([ingress(peer(podSelector={"part": "router"}) | port(port=9000))], False),  # peer and port, not either
    ],
)  # fmt: skip
def test_a_flow_gets_through_as_the_policies_say(policies: list[Any], is_open: bool) -> None:
    flow = Flow(ROUTER, ENGINE, 8000, "http")
    assert (blockers(policies, flow) == []) is is_open


def test_a_pod_selector_alone_means_the_policys_own_namespace() -> None:
    flow = Flow(OPERATOR, ENGINE, 8000)
    assert blockers([ingress({"from": [{"podSelector": {}}]})], flow) == ["ingress of shop/p"]
    assert blockers([ingress({"from": [{"podSelector": {}, "namespaceSelector": {}}]})], flow) == []


def test_both_directions_must_be_open_and_each_that_is_not_is_named() -> None:
    closed = [ingress(), policy({"policyTypes": ["Egress"]}, namespace="pagoda")]
    flow = Flow(OPERATOR, ENGINE, 8000)
    assert blockers(closed, flow) == ["ingress of shop/p", "egress of pagoda/p"]
    assert blockers(closed, flow, ("Egress",)) == ["egress of pagoda/p"]


@pytest.mark.parametrize(
    ("selector", "is_selected"),
    [
        ({}, True),
        ({"matchLabels": {"part": "engine"}}, True),
        ({"matchLabels": {"part": "engine", "x": "y"}}, False),
        ({"matchExpressions": [{"key": "part", "operator": "In", "values": ["engine", "router"]}]}, True),
        ({"matchExpressions": [{"key": "part", "operator": "NotIn", "values": ["engine"]}]}, False),
        ({"matchExpressions": [{"key": "absent", "operator": "NotIn", "values": ["engine"]}]}, True),
        ({"matchExpressions": [{"key": "part", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "absent", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "absent", "operator": "DoesNotExist"}]}, True),
        ({"matchLabels": {"part": "engine"}, "matchExpressions": [{"key": "part", "operator": "DoesNotExist"}]}, False),
    ],
)
def test_a_selector_selects_as_kubernetes_says(selector: dict[str, Any], is_selected: bool) -> None:
    assert selects(selector, {"part": "engine"}) is is_selected
