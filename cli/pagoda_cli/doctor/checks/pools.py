"""Pools: their spec, status, children, Secrets and storage."""

from collections.abc import Iterable

from pagoda_cli.doctor import names
from pagoda_cli.doctor.finding import Finding, Place, place_of
from pagoda_cli.doctor.installation import pull_secrets
from pagoda_cli.doctor.secrets import needed_secrets
from pagoda_cli.doctor.snapshot import (
    Manifest,
    Snapshot,
    age_seconds,
    condition,
    find,
    name_of,
    namespace_of,
    spec_of,
)
from pagoda_protocol.pool.spec import InferencePool, ManagedPool, SpecError

_SETTLE_SECONDS = 60.0  # a change is looked at within seconds; a minute is no coincidence


def check_pools(snapshot: Snapshot) -> Iterable[Finding]:
    """Find what is wrong with pools and with what they need besides pods."""
    yield from _pull_secrets(snapshot)
    for pool in snapshot.pools:
        yield from _status(snapshot, pool)
        yield from _secrets(snapshot, pool)
        match spec_of(pool):
            case InferencePool() as spec:
                yield from _storage(snapshot, pool, spec)
                yield from _children(snapshot, pool, spec)
            case SpecError() as error:
                yield Finding("PGD028", place_of(pool), str(error).replace("\n", "; "))


def _status(snapshot: Snapshot, pool: Manifest) -> Iterable[Finding]:
    ready, degraded = condition(pool, "Ready"), condition(pool, "Degraded")
    if ready.get("status") not in (None, "True"):
        text = f"{ready.get('reason')}: {ready.get('message')}"
        more = f"; Degraded: {degraded.get('message')}" if degraded.get("status") == "True" else ""
        yield Finding("PGD020", place_of(pool), text + more)
    generation = pool["metadata"].get("generation", 0)
    observed = (pool.get("status") or {}).get("observedGeneration", 0)
    if observed < generation and age_seconds(snapshot, _changed_at(pool)) > _SETTLE_SECONDS:
        yield Finding("PGD021", place_of(pool), f"the status is of generation {observed}, the spec of {generation}")


def _changed_at(pool: Manifest) -> str | None:
    """When the spec was written last; the pool's creation where nobody noted it."""
    entries = pool["metadata"].get("managedFields") or ()
    times = [str(entry["time"]) for entry in entries if entry.get("time") and not entry.get("subresource")]
    return max(times, default=pool["metadata"].get("creationTimestamp"))


def _secrets(snapshot: Snapshot, pool: Manifest) -> Iterable[Finding]:
    is_new = age_seconds(snapshot, pool["metadata"].get("creationTimestamp")) < _SETTLE_SECONDS
    for need in needed_secrets(pool):
        place = Place("Secret", need.name, need.namespace)
        whose = f"named by {need.field} of {name_of(pool)}" if need.field else f"made for {name_of(pool)}"
        if (need.namespace, need.name) not in snapshot.secrets or (is_new and not need.field):
            continue
        keys = snapshot.secrets[need.namespace, need.name]
        if keys is None:
            yield Finding("PGD022", place, f"{whose}, it is not there")
        elif missing := [key for key in need.keys if key not in keys]:
            yield Finding("PGD023", place, f"{whose}, it lacks {', '.join(missing)}")


def _pull_secrets(snapshot: Snapshot) -> Iterable[Finding]:
    for namespace in sorted(set(map(namespace_of, snapshot.pools))):
        for name in pull_secrets(snapshot.operators or (), namespace):
            if snapshot.secrets.get((namespace, name), frozenset()) is None:
                text = "named by images.pullSecrets of the operator's chart, it is not there"
                yield Finding("PGD029", Place("Secret", name, namespace), text)


def _storage(snapshot: Snapshot, pool: Manifest, spec: InferencePool) -> Iterable[Finding]:
    if spec.cache.disk is None or spec.cache.disk.storage_class_name is None or snapshot.storage_classes is None:
        return
    wanted = spec.cache.disk.storage_class_name
    if wanted not in map(name_of, snapshot.storage_classes):
        have = ", ".join(sorted(map(name_of, snapshot.storage_classes))) or "none"
        yield Finding("PGD025", place_of(pool), f"spec.cache.disk.storageClassName is {wanted}; the cluster has {have}")


def _children(snapshot: Snapshot, pool: Manifest, spec: InferencePool) -> Iterable[Finding]:
    """Look for the workloads and Services, which stand for all children."""
    is_new = age_seconds(snapshot, pool["metadata"].get("creationTimestamp")) < _SETTLE_SECONDS
    nodes = [names.MEMCACHED] if isinstance(spec.cache.pool, ManagedPool) else []
    parts = [names.ENGINE, names.ROUTER, *nodes]
    for part in parts:
        workloads = snapshot.stateful_sets if part == names.MEMCACHED else snapshot.deployments
        kind = "StatefulSet" if part == names.MEMCACHED else "Deployment"
        for what, objects in ((kind, workloads), ("Service", snapshot.services)):
            if objects is None:
                continue
            place = Place(what, names.child(name_of(pool), part), namespace_of(pool))
            child = find(objects, place.namespace, place.name)
            if child is None and not is_new:
                yield Finding("PGD027", place, f"pool {name_of(pool)} has none")
            elif child is not None and not _is_owned(child, pool):
                yield Finding("PGD026", place, f"pool {name_of(pool)} does not own it")


def _is_owned(child: Manifest, pool: Manifest) -> bool:
    owners = child["metadata"].get("ownerReferences") or ()
    return any(owner.get("controller") and owner["uid"] == pool["metadata"]["uid"] for owner in owners)
