"""Operators for the stories: real processes, with the rights and the flags that the chart would give them.

with operator_identity(control_plane, namespace) as identity:
    with running_operator(identity, tmp_path) as operator:        its /metrics: operator.metric(…)
        …
"""

import contextlib
import dataclasses
import secrets
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from kubernetes.aio import config
from kubernetes.aio.client import Configuration

from e2e.charts.releases import LEAST
from e2e.cluster.handle import Cluster
from pagoda_operator.kube.api import Api
from pagoda_operator.kube.kinds import Kind
from pagoda_operator.kube.lines import KubeLines
from pagoda_operator.kube.transport import KubeTransport
from pagoda_protocol.pool.arguments import Command
from tests.support.ports import free_port
from tests.support.program import HOST, Program

ROOT = Path(__file__).resolve().parent.parent.parent
CHART = ROOT / "charts" / "pagoda"
RELEASE = "pagoda"
_NAMESPACE = Kind("v1", "Namespace", "namespaces", namespaced=False)
_RIGHTS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
READY_SECONDS = 120.0


@dataclasses.dataclass(frozen=True)
class Identity:
    """Who an operator is for the API server, and what the chart tells it."""

    kubeconfig: Path
    namespace: str
    arguments: tuple[str, ...]


@contextlib.contextmanager
def operator_identity(cluster: Cluster, namespace: str, *values: str) -> Iterator[Identity]:
    """Give the chart's ServiceAccount in a namespace, with the chart's rights and no others, while the context is open.

    `values` are what `helm --set` takes; without, the operator looks after this one namespace.
    """
    settings = values or ("watch.scope=Namespaces", f"watch.namespaces={{{namespace}}}")
    flags = [part for value in settings for part in ("--set", value)]
    documents = _rendered(cluster, namespace, flags)
    rights = yaml.safe_dump_all(
        [document for document in documents if document["kind"] in _RIGHTS] + [_lease(namespace)]
    )
    cluster.apply(rights)
    try:
        account = next(document for document in documents if document["kind"] == "ServiceAccount")
        kubeconfig = cluster.service_account_kubeconfig(namespace, account["metadata"]["name"])
        yield Identity(kubeconfig, namespace, _arguments(documents))
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", input=rights)


def _lease(namespace: str) -> dict[str, Any]:
    """Return the Lease as a former operator has left it: the very first one of an installation would wait 8 s."""
    metadata = {"name": RELEASE, "namespace": namespace}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {}}


@contextlib.contextmanager
def running_operator(
    identity: Identity,
    folder: Path,
    name: str = "operator",
    module: str = "pagoda_operator",
    extra: Sequence[str] = (),
    wait: bool = True,
) -> Iterator[Program]:
    """Run an operator process while the context is open; with `wait`, from when it is ready."""
    port = free_port()
    own = (f"--name={name}", f"--host={HOST}", f"--port={port}", *extra)
    command = Command(
        (sys.executable, "-m", module, *identity.arguments, *own), {"KUBECONFIG": str(identity.kubeconfig)}
    )
    program = Program(name, command, port, folder / f"{name}.log")
    program.start()
    try:
        if wait:
            program.wait_ready(seconds=READY_SECONDS)
        yield program
    finally:
        program.end()


@contextlib.asynccontextmanager
async def transport_of(kubeconfig: Path) -> AsyncIterator[KubeTransport]:
    """Reach the API server from within the story, as the kubeconfig says, without a fence."""
    transport = KubeTransport(await _configuration(kubeconfig))
    try:
        yield transport
    finally:
        await transport.close()


@contextlib.asynccontextmanager
async def lines_of(kubeconfig: Path) -> AsyncIterator[KubeLines]:
    """Follow what the API server says, in the same way."""
    lines = KubeLines(await _configuration(kubeconfig))
    try:
        yield lines
    finally:
        await lines.close()


@contextlib.asynccontextmanager
async def namespace_of(api: Api, prefix: str) -> AsyncIterator[str]:
    """Make a namespace while the context is open, as many at once as a story likes; nobody waits for its end."""
    name = f"{prefix}-{secrets.token_hex(4)}"
    await api.create(_NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    try:
        yield name
    finally:
        made = await api.get(_NAMESPACE, None, name)
        assert made is not None
        seen = made["metadata"]
        await api.delete(_NAMESPACE, None, name, uid=seen["uid"], resource_version=seen["resourceVersion"])


def through(identity: Identity, port: int, path: Path) -> Identity:
    """Return the same identity, which reaches the API server by a port of this machine."""
    document = yaml.safe_load(identity.kubeconfig.read_text())
    for cluster in document["clusters"]:
        cluster["cluster"]["server"] = f"https://{HOST}:{port}"
    path.write_text(yaml.safe_dump(document))
    return dataclasses.replace(identity, kubeconfig=path)


def api_server_address(identity: Identity) -> tuple[str, int]:
    """Return host and port of the API server."""
    document = yaml.safe_load(identity.kubeconfig.read_text())
    host, _, port = document["clusters"][0]["cluster"]["server"].rpartition("//")[2].rpartition(":")
    return host.strip("[]"), int(port)


async def _configuration(kubeconfig: Path) -> Configuration:
    made = Configuration()
    await config.load_kube_config(config_file=str(kubeconfig), client_configuration=made, persist_config=False)
    return made


def _rendered(cluster: Cluster, namespace: str, flags: Sequence[str]) -> list[dict[str, Any]]:
    text = cluster.helm("template", RELEASE, str(CHART), "--namespace", namespace, *LEAST, *flags)
    return [document for document in yaml.safe_load_all(text) if document]


def _arguments(documents: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """The flags of the chart's Deployment, but for those that are a process's own."""
    deployment = next(document for document in documents if document["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    own = ("--name=", "--host=", "--port=")
    return tuple(argument for argument in container["args"] if not argument.startswith(own))
