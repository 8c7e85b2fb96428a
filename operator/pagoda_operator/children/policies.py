"""The NetworkPolicies: who may speak to whom, part by part. Pods of other pools, and everybody else, may not.

anybody in the cluster ──► router ──► engine pod (engine, sidecar) ──► memcached
                             └──► API server        ▲
operator, metrics scrapers ──────────────────────────┘           everybody but memcached ──► DNS
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pagoda_operator import names
from pagoda_operator.children.inputs import Manifest, Owner, PolicyPeers
from pagoda_operator.children.objects import part_manifest
from pagoda_operator.children.tiers import managed_of
from pagoda_protocol.pool.spec import ExternalPool, InferencePool

_DNS_PORT = 53
_Rule = dict[str, Any]


def network_policies(pool: InferencePool, owner: Owner, peers: PolicyPeers) -> tuple[Manifest, ...]:
    """Return the policies of a pool that wants them managed."""
    if pool.network_policy != "Managed":
        return ()
    policies = [_engine(pool, owner, peers), _router(owner, peers)]
    return (*policies, _memcached(owner)) if managed_of(pool) is not None else tuple(policies)


def _engine(pool: InferencePool, owner: Owner, peers: PolicyPeers) -> Manifest:
    namespaces = [labels for labels in (peers.operator_namespace, peers.metrics_namespace) if labels]
    callers = [_part(owner, names.ROUTER), *map(_namespaces, namespaces)]
    ingress = [_from(callers, (names.ENGINE_PORT, names.SIDECAR_PORT))]
    return _policy(owner, names.ENGINE, ingress, [_dns(), *_to_nodes(pool, owner)])


def _router(owner: Owner, peers: PolicyPeers) -> Manifest:
    ingress = [_from([_namespaces({})], (names.ROUTER_PORT,))]
    egress = [
        _dns(),
        _to([_part(owner, names.ENGINE)], (names.ENGINE_PORT, names.SIDECAR_PORT)),
        _to([], peers.api_server_ports),
    ]
    return _policy(owner, names.ROUTER, ingress, egress)


def _memcached(owner: Owner) -> Manifest:
    return _policy(owner, names.MEMCACHED, [_from([_part(owner, names.ENGINE)], (names.MEMCACHED_PORT,))], [])


def _to_nodes(pool: InferencePool, owner: Owner) -> list[_Rule]:
    """Let sidecars reach the pool's nodes; others' nodes have names, of which a policy knows the ports alone."""
    if managed_of(pool) is not None:
        return [_to([_part(owner, names.MEMCACHED)], (names.MEMCACHED_PORT,))]
    if not isinstance(pool.cache.pool, ExternalPool):
        return []
    ports = {int(address.rpartition(":")[2]) for address in pool.cache.pool.addresses}
    return [_to([], sorted(ports))]


def _policy(owner: Owner, part: str, ingress: Sequence[_Rule], egress: Sequence[_Rule]) -> Manifest:
    """Return a policy; what no rule allows is forbidden in both directions."""
    spec = {
        "podSelector": {"matchLabels": names.selector(owner.name, part)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": list(ingress),
        **({"egress": list(egress)} if egress else {}),  # the API server drops an empty list
    }
    return part_manifest("networking.k8s.io/v1", "NetworkPolicy", owner, part, spec=spec)


def _from(peers: Sequence[_Rule], ports: Iterable[int]) -> _Rule:
    return {"from": list(peers), "ports": _ports(ports, "TCP")}


def _to(peers: Sequence[_Rule], ports: Iterable[int]) -> _Rule:
    """Allow `ports` of `peers`, of anybody where there are none."""
    return {**({"to": list(peers)} if peers else {}), "ports": _ports(ports, "TCP")}


def _dns() -> _Rule:
    return {"ports": [*_ports((_DNS_PORT,), "UDP"), *_ports((_DNS_PORT,), "TCP")]}


def _ports(ports: Iterable[int], protocol: str) -> list[_Rule]:
    return [{"port": port, "protocol": protocol} for port in ports]


def _part(owner: Owner, part: str) -> _Rule:
    return {"podSelector": {"matchLabels": names.selector(owner.name, part)}}


def _namespaces(labels: Mapping[str, str]) -> _Rule:
    return {"namespaceSelector": {"matchLabels": dict(labels)} if labels else {}}
