"""What is in the images, asked of containers that run as pods of ours do: restricted, on a read-only root."""

import json
from typing import Any

import pytest

from e2e.cluster import part_images
from e2e.cluster.handle import NodeCluster

# Bytes on disk, unpacked; the engine's without the packages that it needs.
LARGEST = {"operator": 220e6, "router": 220e6, "sidecar": 125e6, "engine": 90e6}
LOOK = """
import importlib.util, json, os, pathlib
def is_writable(folder):
    try:
        (pathlib.Path(folder) / "probe").touch()
    except OSError:
        return False
    return True
print(json.dumps({
    "user": os.getuid(),
    "packages": [name for name in NAMES if importlib.util.find_spec(name)],
    "programs": sorted(str(path) for folder in ("/bin", "/usr/bin") for path in pathlib.Path(folder).glob("*")),
    "writable": [folder for folder in ("/", "/tmp", "/usr/local") if is_writable(folder)],
}))
"""
NAMES = ("torch", "kopf", "kubernetes", "grpc", "aiohttp", "pip", "pagoda_operator")


@pytest.mark.parametrize(
    ("part", "packages"),
    [
        ("operator", ["kopf", "kubernetes", "aiohttp", "pagoda_operator"]),
        ("router", ["kubernetes", "aiohttp", "pagoda_operator"]),
        ("sidecar", ["grpc", "aiohttp", "pagoda_operator"]),
    ],
)
def test_an_image_has_what_its_part_needs_and_neither_torch_nor_shell(
    node_cluster: NodeCluster, part: str, packages: list[str]
) -> None:
    with node_cluster.namespace("images", {"pod-security.kubernetes.io/enforce": "restricted"}) as namespace:
        said = _run(node_cluster, namespace, part, f"NAMES = {NAMES}{LOOK}")
    assert json.loads(said) == {"user": 65532, "packages": packages, "programs": [], "writable": ["/tmp"]}


@pytest.mark.parametrize("part", part_images.PARTS)
def test_images_stay_small(node_cluster: NodeCluster, part: str) -> None:
    assert 0 < node_cluster.image_bytes[part] <= LARGEST[part]


def _run(cluster: NodeCluster, namespace: str, part: str, program: str) -> str:
    """Return what a program says in a pod with the part's image."""
    container = {
        "name": part,
        "image": part_images.name(part),
        "imagePullPolicy": "Never",
        "command": ["python", "-c", program],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    metadata = {"name": part, "namespace": namespace}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    cluster.kubectl("create", "-f", "-", input=json.dumps(pod))
    ended = "jsonpath={.status.phase}=Succeeded"
    cluster.kubectl("wait", f"pod/{part}", "-n", namespace, f"--for={ended}", "--timeout=55s")
    return cluster.kubectl("logs", part, "-n", namespace)
