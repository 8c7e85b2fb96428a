"""Which NetworkPolicies keep one pod from another, by the rules of networking.k8s.io/v1. Pure.

A direction of a pod's traffic is restricted once a policy of that type selects the pod; then it is allowed if any rule
of any such policy allows it. What a rule says in terms that cannot be decided here (addresses of pods that do not run
yet) counts as allowed: a gap is told only when it is sure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pagoda_cli.doctor.snapshot import Manifest, name_of, namespace_of

Labels = Mapping[str, str]
BOTH = ("Ingress", "Egress")


@dataclass(frozen=True)
class Endpoint:
    """A pod as policies see it."""

    namespace: str
    labels: Labels
    namespace_labels: Labels = field(default_factory=dict)


@dataclass(frozen=True)
class Flow:
    """What should get through."""

    source: Endpoint
    target: Endpoint
    port: int
    port_name: str = ""
    protocol: str = "TCP"


def blockers(policies: Sequence[Manifest], flow: Flow, directions: Sequence[str] = BOTH) -> list[str]:
    """Return "direction of namespace/name, …" for each direction in which nothing allows the flow."""
    found = []
    for direction in directions:
        own, other = (flow.target, flow.source) if direction == "Ingress" else (flow.source, flow.target)
        restricting = [policy for policy in policies if _restricts(policy, own, direction)]
        if restricting and not any(_allows(policy, direction, other, flow) for policy in restricting):
            named = ", ".join(f"{namespace_of(policy)}/{name_of(policy)}" for policy in restricting)
            found.append(f"{direction.lower()} of {named}")
    return found


def selects(selector: Mapping[str, Any], labels: Labels) -> bool:
    """Return whether a label selector, an empty one for all, selects something with these labels."""
    wanted: Labels = selector.get("matchLabels") or {}
    return wanted.items() <= dict(labels).items() and all(
        _holds(term, labels) for term in selector.get("matchExpressions") or ()
    )


def _holds(term: Mapping[str, Any], labels: Labels) -> bool:
    key, values = term["key"], term.get("values") or ()
    match term["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def _restricts(policy: Manifest, endpoint: Endpoint, direction: str) -> bool:
    spec = policy["spec"]
    types = spec.get("policyTypes") or ["Ingress", *(["Egress"] if "egress" in spec else [])]
    is_there = namespace_of(policy) == endpoint.namespace and direction in types
    return is_there and selects(spec.get("podSelector") or {}, endpoint.labels)


def _allows(policy: Manifest, direction: str, other: Endpoint, flow: Flow) -> bool:
    rules, peers = ("ingress", "from") if direction == "Ingress" else ("egress", "to")
    return any(
        _has_port(rule.get("ports"), flow) and _has_peer(rule.get(peers), other, namespace_of(policy))
        for rule in policy["spec"].get(rules) or ()
    )


def _has_port(ports: Iterable[Mapping[str, Any]] | None, flow: Flow) -> bool:
    return not ports or any(_is_port(port, flow) for port in ports)


def _is_port(allowed: Mapping[str, Any], flow: Flow) -> bool:
    if allowed.get("protocol", "TCP") != flow.protocol:
        return False
    port = allowed.get("port")
    if port is None:
        return True
    if isinstance(port, str) and not port.isdecimal():
        return port == flow.port_name
    return int(port) <= flow.port <= int(allowed.get("endPort", port))


def _has_peer(peers: Iterable[Mapping[str, Any]] | None, other: Endpoint, own_namespace: str) -> bool:
    return not peers or any(_is_peer(peer, other, own_namespace) for peer in peers)


def _is_peer(peer: Mapping[str, Any], other: Endpoint, own_namespace: str) -> bool:
    if "ipBlock" in peer:
        return True
    if (namespaces := peer.get("namespaceSelector")) is None:
        if other.namespace != own_namespace:
            return False
    elif not selects(namespaces, {"kubernetes.io/metadata.name": other.namespace} | dict(other.namespace_labels)):
        return False
    pods = peer.get("podSelector")
    return pods is None or selects(pods, other.labels)
