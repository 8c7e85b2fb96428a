"""The images of our four parts and of memcached, built from this checkout and imported into a node.

The engine's image comes without the packages that it needs: torch is 5 GB, minutes to copy into an image and minutes
to import. Its pods mount this checkout's environment instead, read-only, through a claim (`ENVIRONMENT_*`). Restricted
pods may not mount a node's folder, so it lies in a PersistentVolume that the story makes beforehand.
"""

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

from .handle import Cluster
from .image import PATH, Image
from .node import Node

REPOSITORY = Path(__file__).resolve().parents[2]
PARTS = ("engine", "operator", "router", "sidecar")
TAG = "story"
BUILD_SECONDS = 600.0
ENVIRONMENT_PATH = "/opt/environment"
_ENVIRONMENT_CLASS = "story-environment"


def name(part: str) -> str:
    """Return the name of a part's image; `localhost` keeps runtimes from looking for it anywhere else."""
    return f"localhost/pagoda-{part}:{TAG}"


def chart_values() -> dict[str, Any]:
    """Return the chart's values with which it uses these images."""
    images: dict[str, Any] = {"registry": "localhost", "pullPolicy": "Never"}
    for part in (*PARTS, "memcached"):
        images[part] = {"registry": "localhost", "repository": f"pagoda-{part}", "tag": TAG}
    return {"images": images}


def import_all(node: Node) -> dict[str, int]:
    """Build all images and import them; return the bytes of each."""
    with tempfile.TemporaryDirectory(prefix="pagoda-images-") as folder, ThreadPoolExecutor(2) as pool:
        wheel = _rootfs().build_wheel(Path(folder))
        building = {part: pool.submit(_build, part, Path(folder, part), wheel) for part in PARTS}
        building["memcached"] = pool.submit(_build_memcached, Path(folder, "memcached"))
        for part, built in building.items():
            root = built.result()
            program = ("memcached",) if part == "memcached" else ("python", "-m", f"pagoda_{part}")
            variables = (PATH, "PYTHONDONTWRITEBYTECODE=1")
            node.import_image(Image(name(part), program, environment=variables, user="65532:65532"), root)
        return {part: size_of(built.result()) for part, built in building.items()}


def size_of(root: Path) -> int:
    """Return the bytes of all files below `root`."""
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())


@contextlib.contextmanager
def environment_offered(cluster: Cluster, namespace: str) -> Iterator[None]:
    """Have a volume of this checkout's packages, and the namespace's claim `environment` to it."""
    packages = sysconfig.get_path("purelib")
    room = {"storage": "1Gi"}
    common = {"accessModes": ["ReadOnlyMany"], "storageClassName": _ENVIRONMENT_CLASS}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"environment-{namespace}"},
        "spec": common
        | {
            "capacity": room,
            "hostPath": {"path": packages, "type": "Directory"},
            "claimRef": {"namespace": namespace, "name": "environment"},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "environment", "namespace": namespace},
        "spec": common | {"resources": {"requests": room}, "volumeName": f"environment-{namespace}"},
    }
    cluster.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": [volume, claim]}))
    try:
        yield
    finally:
        cluster.kubectl("delete", "pvc", "environment", "-n", namespace, "--ignore-not-found", "--wait=false")
        cluster.kubectl("delete", "pv", f"environment-{namespace}", "--wait=false")


def pod_template() -> dict[str, Any]:
    """Return what a pool's `engine.podTemplate` says to run with the offered environment."""
    return {
        "volumes": [{"name": "environment", "persistentVolumeClaim": {"claimName": "environment", "readOnly": True}}],
        "volumeMounts": [{"name": "environment", "mountPath": ENVIRONMENT_PATH, "readOnly": True}],
        "env": [{"name": "PYTHONPATH", "value": ENVIRONMENT_PATH}],
    }


def _build(part: str, root: Path, wheel: Path) -> Path:
    options = ["--without-packages"] if part == "engine" else []
    command = [REPOSITORY / "images" / f"{part}.sh", root, "--wheel", wheel, *options]
    this_python = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False, env=this_python)
    assert done.returncode == 0, f"images/{part}.sh failed: {done.stderr}"
    return root


def _build_memcached(root: Path) -> Path:
    """Lay out Debian's memcached as the upstream image has it: on PATH, for whoever runs it."""
    program = shutil.which("memcached")
    assert program is not None, "`make setup` gives memcached"
    target = root / "usr" / "bin" / "memcached"
    target.parent.mkdir(parents=True)
    shutil.copy(program, target)
    layout = _rootfs()
    layout.copy_libraries(root)
    layout.write_accounts(root)
    layout.open_to_all(root)
    return root


def _rootfs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pagoda_rootfs", REPOSITORY / "images" / "rootfs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
