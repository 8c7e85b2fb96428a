"""The NetworkPolicies, read as a cluster's network would: may this pod speak to that port of that pod?"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from pagoda_operator.children import PolicyPeers, Seen
from tests.operator.children.pools import POOLS, SEEN, children_of, templates_of

OWN = {"kubernetes.io/metadata.name": "models"}
OPERATORS = {"kubernetes.io/metadata.name": "pagoda"}
MONITORING = {"kubernetes.io/metadata.name": "monitoring"}
OTHER = {"kubernetes.io/metadata.name": "somewhere"}


@dataclass(frozen=True)
class Pod:
    labels: Mapping[str, str]
    namespace: Mapping[str, str]


def pod(part: str, name: str = "all-tiers") -> Pod:
    return Pod(templates_of(POOLS[name])[part]["metadata"]["labels"], OWN)


STRANGER = Pod({"app": "shop"}, OTHER)
OPERATOR = Pod({"app.kubernetes.io/name": "pagoda"}, OPERATORS)
SCRAPER = Pod({"app": "prometheus"}, MONITORING)
NEIGHBOUR = Pod({"app": "shop"}, OWN)


def policies(name: str, seen: Seen = SEEN) -> list[dict[str, Any]]:
    children = children_of(POOLS[name], seen).values()
    return [child["spec"] for child in children if child["kind"] == "NetworkPolicy"]


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    return selector.get("matchLabels", {}).items() <= labels.items()


def allows(rules: list[dict[str, Any]], side: str, other: Pod | None, port: int, protocol: str) -> bool:
    """Whether a rule lets `other` (None: an address outside the cluster) through."""
    for rule in rules:
        if {"port": port, "protocol": protocol} not in rule["ports"]:
            continue
        if side not in rule:
            return True
        for peer in rule[side]:
            namespace = peer.get("namespaceSelector", {"matchLabels": OWN})
            if (
                other is not None
                and matches(namespace, other.namespace)
                and matches(peer.get("podSelector", {}), other.labels)
            ):
                return True
    return False


def may(
    source: Pod, target: Pod | None, port: int, name: str = "all-tiers", protocol: str = "TCP", **kwargs: Any
) -> bool:
    """Whether the policies of a pool let `source` speak to a port of `target`."""
    everything = policies(name, **kwargs)
    leaving = [spec for spec in everything if source.namespace == OWN and matches(spec["podSelector"], source.labels)]
    entering = [
        spec
        for spec in everything
        if target is not None and target.namespace == OWN and matches(spec["podSelector"], target.labels)
    ]
    is_out = not leaving or any(allows(spec.get("egress", []), "to", target, port, protocol) for spec in leaving)
    is_in = not entering or any(allows(spec.get("ingress", []), "from", source, port, protocol) for spec in entering)
    return is_out and is_in


ENGINE, ROUTER, NODE = pod("engine"), pod("router"), pod("memcached")
FOREIGN_ROUTER, FOREIGN_ENGINE = pod("router", "ram"), pod("engine", "ram")


@pytest.mark.parametrize(
    ("source", "target", "port", "expected"),
    [
        (STRANGER, ROUTER, 8080, True),
        (NEIGHBOUR, ROUTER, 8080, True),
        (SCRAPER, ROUTER, 8080, True),
        (ROUTER, ENGINE, 8000, True),
        (ROUTER, ENGINE, 8001, True),
        (OPERATOR, ENGINE, 8000, True),
        (OPERATOR, ENGINE, 8001, True),
        (SCRAPER, ENGINE, 8000, True),
        (SCRAPER, ENGINE, 8001, True),
        (ENGINE, NODE, 11211, True),
        (STRANGER, ENGINE, 8000, False),
        (NEIGHBOUR, ENGINE, 8000, False),
        (NEIGHBOUR, ENGINE, 8001, False),
        (FOREIGN_ROUTER, ENGINE, 8000, False),
        (STRANGER, NODE, 11211, False),
        (ROUTER, NODE, 11211, False),
        (OPERATOR, NODE, 11211, False),
        (FOREIGN_ENGINE, NODE, 11211, False),
        (ENGINE, STRANGER, 443, False),
        (ENGINE, None, 443, False),
        (ROUTER, FOREIGN_ENGINE, 8000, False),
        (ROUTER, None, 443, True),
        (ROUTER, None, 6443, True),
        (ROUTER, None, 80, False),
        (NODE, None, 443, False),
        (NODE, ENGINE, 8000, False),
        (ROUTER, ENGINE, 22, False),
    ],
)
def test_only_who_has_to_may_speak_to_a_pools_pods(source: Pod, target: Pod | None, port: int, expected: bool) -> None:
    assert may(source, target, port) is expected


@pytest.mark.parametrize(("source", "expected"), [(ENGINE, True), (ROUTER, True), (NODE, False)])
def test_who_looks_up_names_may(source: Pod, expected: bool) -> None:
    assert may(source, None, 53, protocol="UDP") is expected
    assert may(source, None, 53, protocol="TCP") is expected


def test_nodes_outside_are_reached_by_their_ports() -> None:
    engine = pod("engine", "external")
    assert may(engine, None, 11211, "external")
    assert may(engine, None, 11212, "external")
    assert not may(engine, None, 11213, "external")
    assert not may(pod("engine", "ram"), None, 11211, "ram")


def test_without_labels_of_their_namespaces_nobody_scrapes() -> None:
    closed = Seen(live=None, policy=PolicyPeers({}, {}))
    assert not may(OPERATOR, ENGINE, 8001, seen=closed)
    assert not may(SCRAPER, ENGINE, 8001, seen=closed)
    assert may(ROUTER, ENGINE, 8001, seen=closed)


def test_the_api_servers_ports_are_the_charts() -> None:
    moved = Seen(live=None, policy=PolicyPeers(OPERATORS, MONITORING, (16443,)))
    assert may(ROUTER, None, 16443, seen=moved)
    assert not may(ROUTER, None, 6443, seen=moved)


def test_mode_none_makes_no_policy() -> None:
    assert policies("longest-name") == []
    assert len(policies("all-tiers")) == 3
    assert len(policies("least")) == 2
