"""Room for a pool with everything on a machine of two cores: pods ask for less CPU than the operator gives them.

What they may use stays as it is, so nothing runs otherwise than it would; only the scheduler counts less. A policy of
the cluster does it to every pod of a pool, and to nothing else.
"""

import json
from typing import Any

from e2e.cluster.handle import Cluster

REQUEST = "20m"
_NAME = "room-for-pools"
_KIND = {"apiVersion": "admissionregistration.k8s.io/v1"}


def make_room(cluster: Cluster) -> None:
    """Have the API server change what pods of pools ask for; it takes effect within a second or two."""
    cluster.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": [_policy(), _binding()]}))


def _policy() -> dict[str, Any]:
    spec = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {
            "objectSelector": {"matchLabels": {"app.kubernetes.io/managed-by": "pagoda-operator"}},
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
            ],
        },
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": _patch()}}],
    }
    return _KIND | {"kind": "MutatingAdmissionPolicy", "metadata": {"name": _NAME}, "spec": spec}


def _binding() -> dict[str, Any]:
    return _KIND | {
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": _NAME},
        "spec": {"policyName": _NAME},
    }


def _patch() -> str:
    """Return the expression that gives the patch; each of our pods has one container and at most one sidecar."""
    container, sidecar = (f"[{_replacing(kind)}]" for kind in ("containers", "initContainers"))
    return f"{container} + (has(object.spec.initContainers) ? {sidecar} : [])"


def _replacing(kind: str) -> str:
    return f'JSONPatch{{op: "replace", path: "/spec/{kind}/0/resources/requests/cpu", value: "{REQUEST}"}}'
