"""What the operator calls things: its kind, its managers, its labels, and the names of a pool's children.

Pure, and the one place that knows a name. A pool's name has at most 40 characters and no dots, so that all of these
fit where Kubernetes is strictest: a label's value, 63.
"""

from collections.abc import Mapping
from typing import Any

GROUP = "pagoda-kv.io"
VERSION = "v1alpha1"
PLURAL = "inferencepools"
KIND = "InferencePool"

MANAGER = "pagoda-operator"
"""Field manager of the children."""
STATUS_MANAGER = "pagoda-operator-status"
ANNOTATIONS_MANAGER = "pagoda-operator-annotations"

POOL_LABEL = f"{GROUP}/pool"
PART_LABEL = f"{GROUP}/part"
APPLIED_ANNOTATION = f"{GROUP}/applied"
"""On each child: the digest of the manifest that was applied last."""

ENGINE = "engine"
ROUTER = "router"
MEMCACHED = "memcached"
PARTS = (ENGINE, ROUTER, MEMCACHED)

ENGINE_CONTAINER = "engine"
SIDECAR_CONTAINER = "sidecar"
ROUTER_CONTAINER = "router"
MEMCACHED_CONTAINER = "memcached"

ENGINE_PORT_NAME, ENGINE_PORT = "http", 8000
SIDECAR_PORT_NAME, SIDECAR_PORT = "sidecar", 8001
ROUTER_PORT_NAME, ROUTER_PORT = "http", 8080
ROUTER_SERVICE_PORT = 80
MEMCACHED_PORT_NAME, MEMCACHED_PORT = "memcached", 11211

POOL_NODES_KEY = "pool-nodes.json"

_UID_DIGITS = 8


def child_name(pool_name: str, part: str) -> str:
    """Return the name of a part's workload, Service, PodDisruptionBudget, NetworkPolicy, ServiceAccount and roles."""
    return f"{pool_name}-{part}"


def is_made_for(pool_name: str, part: str, pod: Mapping[str, Any]) -> bool:
    """Whether a part's workload has made a pod, by its controller's name: labels alone anybody may write."""
    workload = child_name(pool_name, part)
    controllers = (owner for owner in pod["metadata"].get("ownerReferences") or () if owner.get("controller"))
    if part == MEMCACHED:
        return any((owner["kind"], owner["name"]) == ("StatefulSet", workload) for owner in controllers)
    return any(owner["kind"] == "ReplicaSet" and owner["name"].startswith(f"{workload}-") for owner in controllers)


def live_name(pool_name: str) -> str:
    """Return the name of the ConfigMap with the live settings."""
    return f"{pool_name}-live"


def pool_secret_name(pool_name: str, uid: str) -> str:
    """Return the name of the Secret with the pool secret that is made for a pool that names none."""
    return f"{pool_name}-{_uid_digits(uid)}"


def memcached_secret_name(pool_name: str, uid: str) -> str:
    """Return the name of the Secret with which managed memcached nodes are spoken to."""
    return f"{pool_name}-mc-{_uid_digits(uid)}"


def memcached_pod_name(pool_name: str, ordinal: int) -> str:
    """Return the name of a memcached pod, which is its node's name in the live list too."""
    return f"{child_name(pool_name, MEMCACHED)}-{ordinal}"


def selector(pool_name: str, part: str) -> dict[str, str]:
    """Return the labels that select a part's pods; they never change."""
    return {POOL_LABEL: pool_name, PART_LABEL: part}


def selector_text(pool_name: str, part: str) -> str:
    """Return the same as one string, as list calls, routers and the scale subresource want it."""
    return ",".join(f"{key}={value}" for key, value in selector(pool_name, part).items())


def labels(pool_name: str, part: str) -> dict[str, str]:
    """Return all labels of a part's children and pods."""
    return {**shared_labels(pool_name, part), PART_LABEL: part}


def shared_labels(pool_name: str, component: str) -> dict[str, str]:
    """Return all labels of a child that several parts read: the live settings, the Secrets."""
    return {
        "app.kubernetes.io/name": "pagoda",
        "app.kubernetes.io/managed-by": MANAGER,
        "app.kubernetes.io/instance": pool_name,
        "app.kubernetes.io/component": component,
        POOL_LABEL: pool_name,
    }


def _uid_digits(uid: str) -> str:
    return uid.replace("-", "")[:_UID_DIGITS]
