"""A running cluster, as the stories use it: kubectl, helm, namespaces, identities."""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

from . import fake_nodes
from .node import Node

CALL_SECONDS = 60.0
HELM_SECONDS = 180.0
KIND_WAITS = 12  # of ten seconds each


class KubectlError(Exception):
    """kubectl or helm refused; the text is what it said."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that answers. Used as a context, it ends by removing its files, tokens among them."""

    kubeconfig: Path
    # A folder with kubectl; None: it is on PATH.
    programs: Path | None = None
    # False: an API server alone, where a Deployment makes no pods and a namespace never goes away.
    has_controllers: bool = True
    # The addresses of pods on fake nodes.
    fake_pods: str = "10.199.0.0/16"
    # Files of this session alone: kubeconfigs of service accounts, the clients' caches.
    scratch: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="pagoda-cluster-")))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)

    def kubectl(self, *arguments: str, input: str | None = None, timeout: float = CALL_SECONDS) -> str:
        """Run kubectl and return what it printed; KubectlError has what it complained of."""
        return self._run("kubectl", arguments, input, timeout)

    def kubectl_json(self, *arguments: str) -> dict[str, Any]:
        """Run kubectl with `-o json` and return the object."""
        return dict(json.loads(self.kubectl(*arguments, "-o", "json")))

    def helm(self, *arguments: str, timeout: float = HELM_SECONDS) -> str:
        """Run helm and return what it printed."""
        return self._run("helm", arguments, None, timeout)

    def apply(self, documents: str) -> None:
        """Apply YAML server-side."""
        self.kubectl("apply", "--server-side", "--field-manager=story", "-f", "-", input=documents)

    def remove_kind(self, crd: str) -> None:
        """Delete a CustomResourceDefinition, if there is one, and wait until it is gone.

        The API server may forget one that it is deleting, until it looks through all of them minutes later: its
        finalizer tries again at once after an error, gives up at a conflict with its own last write, and may take
        the event of that write for no change. Another change makes it look again.
        """
        self.kubectl("delete", "crd", crd, "--ignore-not-found", "--wait=false")
        for number in range(KIND_WAITS):
            if number > 0:
                with contextlib.suppress(KubectlError):
                    self.kubectl("annotate", "crd", crd, "--overwrite", f"example.com/reminder={number}")
            with contextlib.suppress(KubectlError):
                self.kubectl("wait", "--for=delete", f"crd/{crd}", "--timeout=10s")
                return
        left = self.kubectl("get", "crd", crd, "--ignore-not-found", "--output=jsonpath={.status.conditions}")
        if left:
            raise TimeoutError(f"{crd} does not go: {left}")

    @contextlib.contextmanager
    def namespace(self, prefix: str, labels: dict[str, str] | None = None) -> Iterator[str]:
        """Make a namespace with a name of its own and delete it in the end, without waiting for that."""
        name = f"{prefix}-{secrets.token_hex(3)}"
        metadata = {"name": name, "labels": labels or {}}
        self.kubectl(
            "create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        )
        try:
            yield name
        finally:
            with contextlib.suppress(KubectlError):
                self.kubectl("delete", "namespace", name, "--wait=false")

    def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """Return a kubeconfig that speaks as this service account, with its rights and no others, for an hour."""
        token = self.kubectl("create", "token", name, "--namespace", namespace, "--duration", "1h").strip()
        document = yaml.safe_load(self.kubectl("config", "view", "--raw", "--minify", "--flatten"))
        document["users"] = [{"name": name, "user": {"token": token}}]
        document["contexts"][0]["context"] |= {"user": name, "namespace": namespace}
        path = self.scratch / f"{namespace}-{name}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(document), "utf-8")
        return path

    @contextlib.contextmanager
    def fake_nodes(self, count: int, gpus: int = 8) -> Iterator[list[str]]:
        """Have `count` nodes on which pods are ready and nothing runs; see fake_nodes.py."""
        names = [f"fake-{i}" for i in range(count)]
        self.kubectl("apply", "--server-side", "-f", "-", input=fake_nodes.manifests(names, gpus))
        try:
            with fake_nodes.playing(self.kubeconfig, self.fake_pods):
                ready = [f"node/{name}" for name in names]
                self.kubectl("wait", "--for=condition=Ready", *ready, "--timeout=50s")
                yield names
        finally:
            self.kubectl("delete", "node", *names, "--ignore-not-found")

    def environment(self) -> dict[str, str]:
        """Return the environment in which programs find this cluster and its tools."""
        changed = {"KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(self.scratch / "kube-cache")}
        changed |= {
            f"HELM_{what}_HOME": str(self.scratch / f"helm-{what.lower()}") for what in ("CACHE", "CONFIG", "DATA")
        }
        if self.programs is not None:
            changed["PATH"] = f"{self.programs}{os.pathsep}{os.environ.get('PATH', '')}"
        return os.environ | changed

    def _run(self, program: str, arguments: tuple[str, ...], given: str | None, timeout: float) -> str:
        done = subprocess.run(
            [program, *arguments], input=given, capture_output=True, text=True, timeout=timeout, check=False,
            env=self.environment(), executable=self._executable(program),
        )  # fmt: skip
        if done.returncode != 0:
            raise KubectlError(f"{program} {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def _executable(self, program: str) -> str | None:
        if self.programs is not None and (self.programs / program).exists():
            return str(self.programs / program)
        return None


@dataclass(frozen=True, kw_only=True)
class NodeCluster(Cluster):
    """A cluster that runs pods, on this machine."""

    node: Node
    # What the node's images of our parts take unpacked; filled when they are imported.
    image_bytes: dict[str, int] = field(default_factory=dict)
