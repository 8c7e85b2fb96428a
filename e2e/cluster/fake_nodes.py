"""Nodes and pods that are only played, by kwok: the API server sees them ready, and nothing runs.

For stories about many pods. Where root is, every address of a played pod is this machine, so that one process which
listens on all addresses answers for all of them.
"""

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from . import binaries
from .processes import Processes

STAGES = (
    "node/fast/node-initialize", "node/heartbeat-with-lease/node-heartbeat-with-lease", "pod/fast/pod-ready",
    "pod/fast/pod-complete", "pod/fast/pod-delete",
)  # fmt: skip
SECONDS = 20.0
# Played pods ask for this toleration; real ones stay away.
TAINT = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}
_ANNOTATION = {"kwok.x-k8s.io/node": "fake"}


def stages() -> str:
    """Return how kwok is to play: its own stages, with ids for containers (pods are told apart by them)."""
    folder = binaries.kwok_source() / "kustomize" / "stage"
    text = "\n---\n".join((folder / f"{name}.yaml").read_text("utf-8") for name in STAGES)
    running = "        ready: true\n"
    identity = '        containerID: {{ printf "kwok://%s-%s" $pod.metadata.uid .name | Quote }}\n'
    ready = text.index("name: pod-ready\n")
    end = text.index("\n---\n", ready)
    played = text[ready:end].replace("{{ $now := Now }}", "{{ $now := Now }}{{ $pod := . }}")
    assert running in played, "kwok's stage pod-ready has changed"
    return text[:ready] + played.replace(running, running + identity) + text[end:]


def node(name: str, gpus: int) -> dict[str, object]:
    """Return a node object that kwok will play."""
    room = {"cpu": "1k", "memory": "10Ti", "pods": "1000", "ephemeral-storage": "10Ti", "nvidia.com/gpu": str(gpus)}
    labels = {"kubernetes.io/hostname": name, "type": "kwok"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": _ANNOTATION, "labels": labels},
        "spec": {"taints": [TAINT]},
        "status": {"allocatable": room, "capacity": room},
    }


@contextlib.contextmanager
def playing(kubeconfig: Path, pods: str) -> Iterator[None]:
    """Have kwok play every node that `node` made, its pods with addresses in the network `pods`."""
    program = binaries.kwok()
    with tempfile.TemporaryDirectory(prefix="pagoda-kwok-") as folder, _answered_here(pods):
        played = Path(folder) / "stages.yaml"
        played.write_text(stages(), "utf-8")
        processes = Processes(Path(folder))
        network, _, width = pods.partition("/")
        first = f"{network.removesuffix('.0')}.1/{width}"
        processes.start(
            "kwok", program, "--kubeconfig", kubeconfig, "--config", played, "--manage-all-nodes=false",
            "--manage-nodes-with-annotation-selector", "kwok.x-k8s.io/node=fake", "--cidr", first,
            "--node-ip", first.partition("/")[0], "--node-lease-duration-seconds", "40",
        )  # fmt: skip
        try:
            yield
        finally:
            processes.stop("kwok")


@contextlib.contextmanager
def _answered_here(network: str) -> Iterator[None]:
    """Make every address of `network` this machine's own."""
    route = ("local", network, "dev", "lo")
    if os.geteuid() != 0:
        yield
        return
    subprocess.run(["ip", "route", "replace", *route], check=True, timeout=SECONDS)
    try:
        yield
    finally:
        subprocess.run(["ip", "route", "delete", *route], check=False, timeout=SECONDS)


def manifests(names: list[str], gpus: int) -> str:
    """Return these nodes as one List for kubectl."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [node(name, gpus) for name in names]})
