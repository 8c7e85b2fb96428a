"""Nodes: whether they offer what engine pods ask for. Cluster autoscalers may still bring some."""

from collections.abc import Iterable

from pagoda_cli.doctor import names
from pagoda_cli.doctor.finding import Finding, place_of
from pagoda_cli.doctor.snapshot import Manifest, Snapshot, find, name_of, namespace_of, spec_of
from pagoda_protocol.pool.quantities import GIBI, QuantityError, parse_bytes
from pagoda_protocol.pool.spec import InferencePool

GPU = "nvidia.com/gpu"


def check_nodes(snapshot: Snapshot) -> Iterable[Finding]:
    """Find pools that no node can serve."""
    if snapshot.nodes is None:
        return
    usable = [node for node in snapshot.nodes if not (node.get("spec") or {}).get("unschedulable")]
    for pool in snapshot.pools:
        spec = spec_of(pool)
        if isinstance(spec, InferencePool):
            yield from _gpus(pool, spec, usable)
            yield from _memory(snapshot, pool, usable)


def _gpus(pool: Manifest, spec: InferencePool, nodes: Iterable[Manifest]) -> Iterable[Finding]:
    each = spec.engine.resources.num_gpus
    if not each:
        return
    offered = [_allocatable(node, GPU) for node in nodes]
    if not any(offered):
        yield Finding("PGD030", place_of(pool), f"each engine pod asks for {each} {GPU}; no node offers any")
        return
    room = sum(count // each for count in offered)
    if room < spec.replicas:
        seen = f"{spec.replicas} pods with {each} {GPU} each; all nodes together, were they empty, have room for {room}"
        yield Finding("PGD031", place_of(pool), seen)


def _memory(snapshot: Snapshot, pool: Manifest, nodes: Iterable[Manifest]) -> Iterable[Finding]:
    deployment = find(snapshot.deployments or (), namespace_of(pool), names.child(name_of(pool), names.ENGINE))
    largest = max((_allocatable(node, "memory") for node in nodes), default=0)
    if deployment is None or not largest:
        return
    needed = _pod_memory(deployment["spec"]["template"]["spec"])
    if needed > largest:
        seen = f"an engine pod asks for {needed / GIBI:.1f}Gi; the largest node offers {largest / GIBI:.1f}Gi"
        yield Finding("PGD032", place_of(pool), seen)


def _pod_memory(spec: Manifest) -> int:
    """Return what the scheduler counts: containers and native sidecars together (ordinary init containers end)."""
    containers = [
        *spec["containers"],
        *(c for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"),
    ]
    return sum(_requested(container.get("resources") or {}) for container in containers)


def _requested(resources: Manifest) -> int:
    text = (resources.get("requests") or {}).get("memory") or (resources.get("limits") or {}).get("memory") or "0"
    return _number(text)


def _allocatable(node: Manifest, resource: str) -> int:
    return _number(((node.get("status") or {}).get("allocatable") or {}).get(resource, "0"))


def _number(quantity: object) -> int:
    """Return a quantity as a whole number; a unit that nobody knows counts as nothing."""
    text = str(quantity)
    try:
        return int(text[:-1]) // 1000 if text.endswith("m") else parse_bytes(text)
    except (QuantityError, ValueError):
        return 0
