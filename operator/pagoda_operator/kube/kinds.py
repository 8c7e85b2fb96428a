"""The kinds the operator reads or writes, with the path under which each is served; how times in them are written."""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """One kind of object."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None, name: str | None = None, subresource: str = "") -> str:
        """Return the path of all objects (of a namespace, or of all), or of one."""
        parts = ["apis" if "/" in self.api_version else "api", self.api_version]
        if namespace is not None and self.namespaced:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name is not None:
            parts.append(quote(name, safe=""))
        return "/" + "/".join([*parts, subresource] if subresource else parts)


POOL = Kind("pagoda-kv.io/v1alpha1", "InferencePool", "inferencepools")
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")
STATEFUL_SET = Kind("apps/v1", "StatefulSet", "statefulsets")
POD = Kind("v1", "Pod", "pods")
SERVICE = Kind("v1", "Service", "services")
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
SECRET = Kind("v1", "Secret", "secrets")
SERVICE_ACCOUNT = Kind("v1", "ServiceAccount", "serviceaccounts")
DISRUPTION_BUDGET = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
ROLE = Kind("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDING = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
EVENT = Kind("events.k8s.io/v1", "Event", "events")
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")

CHILDREN = (
    SERVICE_ACCOUNT, ROLE, ROLE_BINDING, CONFIG_MAP, SERVICE, NETWORK_POLICY, DISRUPTION_BUDGET, STATEFUL_SET,
    DEPLOYMENT,
)  # fmt: skip
"""What a pool's children are, but for its Secrets, which are never read."""

_BY_NAME: Mapping[tuple[str, str], Kind] = {
    (kind.api_version, kind.kind): kind for kind in (*CHILDREN, POOL, POD, SECRET, EVENT, LEASE)
}


def kind_of(manifest: Mapping[str, object]) -> Kind:
    """Return the kind of a manifest.

    Raises:
        KeyError: none of ours.
    """
    return _BY_NAME[str(manifest["apiVersion"]), str(manifest["kind"])]


def micro_time(moment: datetime.datetime) -> str:
    """Return a moment as Kubernetes' MicroTime."""
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
