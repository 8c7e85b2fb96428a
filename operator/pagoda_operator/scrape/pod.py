"""What the operator remembers of an engine pod between two events: little, for there may be thousands.

A pod counts as a pool's when it carries the two labels and its controller is a ReplicaSet of the pool's engine
Deployment; labels alone anybody may write.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pagoda_operator.names import ENGINE, ENGINE_CONTAINER, PART_LABEL, POOL_LABEL, SIDECAR_CONTAINER, is_made_for
from pagoda_protocol.annotations import CACHE_EPOCH, HIT_RATE_PERMILLE, PREFIX_HITS

OURS = (CACHE_EPOCH, PREFIX_HITS, HIT_RATE_PERMILLE)
# What may change without anything having happened to the pod.
_QUIET = ("annotations", "managedFields", "resourceVersion")


@dataclass(frozen=True)
class EnginePod:
    """One engine pod as the last event showed it."""

    namespace: str
    name: str
    uid: str
    pool: str
    resource_version: str
    address: str | None
    """The pod's IP; None: it has none yet, or it is terminating, and nobody asks it anything."""
    container_id: str | None
    """Of the engine's container, while it runs."""
    sidecar_id: str | None
    """Of the sidecar's container, while it runs."""
    is_ready: bool
    """What the kubelet says of the engine's container."""
    written: Mapping[str, str]
    """Those of our annotations that are there."""
    fingerprint: int
    """Of all but annotations: equal when an event brought nothing else."""

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and pool."""
        return self.namespace, self.pool

    @property
    def can_answer(self) -> bool:
        """Whether asking it makes sense."""
        return self.address is not None and (self.container_id is not None or self.sidecar_id is not None)


def read_pod(manifest: Mapping[str, Any]) -> EnginePod | None:
    """Read a pod as the API server gives it; None: it is no pool's engine."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    labels = metadata.get("labels") or {}
    pool = labels.get(POOL_LABEL)
    if not pool or labels.get(PART_LABEL) != ENGINE or not is_made_for(pool, ENGINE, manifest):
        return None
    engine = _container(status.get("containerStatuses"), ENGINE_CONTAINER)
    sidecar = _container(status.get("initContainerStatuses"), SIDECAR_CONTAINER)
    return EnginePod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        pool=pool,
        resource_version=metadata["resourceVersion"],
        address=None if metadata.get("deletionTimestamp") else status.get("podIP") or None,
        container_id=_running_id(engine),
        sidecar_id=_running_id(sidecar),
        is_ready=bool(engine.get("ready")),
        written=_ours(metadata.get("annotations") or {}),
        fingerprint=_fingerprint(manifest),
    )


def annotated(pod: EnginePod, version: str, annotations: Mapping[str, str]) -> EnginePod:
    """Return the pod as it is of another version, with other annotations."""
    return replace(pod, resource_version=version, written=_ours(annotations))


def _ours(annotations: Mapping[str, str]) -> Mapping[str, str]:
    return {key: annotations[key] for key in OURS if key in annotations}


def _container(statuses: Any, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next((status for status in statuses or () if status.get("name") == name), {})
    return found


def _running_id(status: Mapping[str, Any]) -> str | None:
    return status.get("containerID") or None if (status.get("state") or {}).get("running") is not None else None


def _fingerprint(manifest: Mapping[str, Any]) -> int:
    metadata = {key: value for key, value in manifest["metadata"].items() if key not in _QUIET}
    parts = (metadata, manifest.get("spec"), manifest.get("status"))
    return hash(json.dumps(parts, sort_keys=True, default=dict))
