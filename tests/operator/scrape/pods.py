"""Engine pods as the API server gives them, and what their two doors say."""

import copy
import json
from typing import Any

ARENA = "ab" * 16
HITS = [["0" * 31 + "1", 512, "ram", 9.5], ["0" * 31 + "2", 64, "device", 2]]


def engine_pod(number: int = 0, *, pool: str = "chat", address: str | None = "127.0.0.1", **changes: Any) -> Any:
    """Make a running, ready pod; `changes`: `container`, `sidecar`, `ready`, `version`, `annotations`, `deleted`."""
    metadata: dict[str, Any] = {
        "namespace": "shop",
        "name": f"{pool}-engine-6f-{number}",
        "uid": f"uid-{pool}-{number}",
        "resourceVersion": str(changes.get("version", 1)),
        "labels": {"pagoda-kv.io/pool": pool, "pagoda-kv.io/part": "engine"},
        "ownerReferences": [{"kind": "ReplicaSet", "name": f"{pool}-engine-6f", "controller": True}],
        "annotations": dict(changes.get("annotations", {})),
    }
    if changes.get("deleted"):
        metadata["deletionTimestamp"] = "2026-11-30T06:00:00Z"
    status = {
        "podIP": address,
        "containerStatuses": [
            _container("engine", changes.get("container", "containerd://e1")) | {"ready": changes.get("ready", True)}
        ],
        "initContainerStatuses": [_container("sidecar", changes.get("sidecar", "containerd://s1"))],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n1"}, "status": status}


def _container(name: str, container_id: str | None) -> dict[str, Any]:
    if container_id is None:
        return {"name": name, "containerID": "containerd://old", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    return {"name": name, "containerID": container_id, "state": {"running": {"startedAt": "2026-11-30T06:00:00Z"}}}


READY: dict[str, Any] = {
    "status": "ready",
    "generation": 3,
    "proof": {"generated": True, "tiers": {"ram": "ok", "disk": "none", "pool": "ok"}, "state": "12" * 8},
}
SUMMARY: dict[str, Any] = {
    "version": 1,
    "epochs": {"device": "cd" * 16, "ram": ARENA, "disk": None},
    "hit_ratio": 0.81,
    "namespace": "ef" * 32,
    "block_tokens": 16,
    "protocol": 2,
    "tiers": {
        "ram": {"state": "on", "reason": ""},
        "disk": {"state": "none", "reason": ""},
        "pool": {
            "state": "on",
            "reason": "",
            "list": "34" * 8,
            "nodes": {"chat-memcached-0": {"state": "up", "reason": ""}},
        },
    },
    "hits": HITS,
    "state": "12" * 8,
}


def ready(**changes: Any) -> dict[str, Any]:
    """Make an answer of `/ready`."""
    return copy.deepcopy(READY) | changes


def summary(**changes: Any) -> dict[str, Any]:
    """Make an answer of `/v1/summary`."""
    return copy.deepcopy(SUMMARY) | changes


def as_bytes(document: object) -> bytes:
    return json.dumps(document).encode()
