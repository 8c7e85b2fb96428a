"""Pods that Kubernetes knows: who is routed to, and what happens while it does not answer."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pagoda_router import kubernetes_pods
from pagoda_router.errors import DiscoveryError, StartError
from pagoda_router.instruments import Instruments
from pagoda_router.kubernetes_api import PodEvent
from pagoda_router.kubernetes_pods import KubernetesPods, sighting_of
from pagoda_router.pods import Pod
from pagoda_router.server import Router, running
from pagoda_router.sources import Sighting
from pagoda_runtime.metrics import Metrics
from tests.router.fake_kubernetes import NAMESPACE, SELECTOR, FakeKubernetes, fake_kubernetes, pod_document
from tests.router.fakes import KEY, FakePod, make_settings, until


class Cluster:
    """A fake API server, fake pods, and a router that finds them there."""

    def __init__(self, kubernetes: FakeKubernetes, router: Router, pods: list[FakePod]) -> None:
        self.kubernetes = kubernetes
        self.router = router
        self.pods = pods

    @property
    def ready(self) -> list[str]:
        return sorted(member.pod.name for member in self.router.fleet.ready())

    async def get(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.router.port}{path}"
        async with aiohttp.ClientSession() as client, client.get(url) as response:
            return response.status, await response.text()

    async def degraded(self) -> list[str]:
        _, text = await self.get("/metrics")
        return [line for line in text.splitlines() if line.startswith("pagoda_router_discovery_degraded{")]


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(kubernetes_pods, "LAST_WAIT_SECONDS", 0.4)
    (tmp_path / "digest").write_bytes(KEY)
    pods = [FakePod("chat-a"), FakePod("chat-b")]
    async with contextlib.AsyncExitStack() as stack:
        kubernetes, path = await stack.enter_async_context(fake_kubernetes(tmp_path))
        monkeypatch.setenv("KUBECONFIG", str(path))
        for index, pod in enumerate(pods):
            stack.push_async_callback(pod.stop)
            await pod.start()
            await kubernetes.put(pod_document(pod, f"uid-{index}"))
        settings = make_settings(tmp_path, pod_selector=SELECTOR, namespace=NAMESPACE)
        router = await stack.enter_async_context(running(settings))
        cluster = Cluster(kubernetes, router, pods)
        await until(lambda: cluster.ready == ["chat-a", "chat-b"])
        await until(lambda: kubernetes.num_watches == 1)
        yield cluster


async def test_pods_are_listed_in_pages_then_come_and_go_by_the_watch(cluster: Cluster) -> None:
    await cluster.kubernetes.delete("uid-1")
    await until(lambda: cluster.ready == ["chat-a"])
    await cluster.kubernetes.put(pod_document(cluster.pods[1], "uid-2"))
    await until(lambda: cluster.ready == ["chat-a", "chat-b"])
    assert cluster.kubernetes.num_lists == 1
    cluster.kubernetes.page = 1
    await cluster.kubernetes.cut()
    await until(lambda: cluster.kubernetes.num_watches == 2)
    assert cluster.kubernetes.num_lists == 3, "two pages"
    assert cluster.ready == ["chat-a", "chat-b"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"metadata": {"deletionTimestamp": "2026-11-30T00:00:00Z"}}, "chat-a: is being deleted"),
        ({"status": {"containerStatuses": [{"name": "engine", "ready": False}]}}, "chat-a: its engine is not ready"),
        ({"status": {"containerStatuses": [{"name": "sidecar", "ready": True}]}}, "chat-a: its engine has no status"),
        ({"status": {"podIP": None, "phase": "Pending"}}, "chat-a: has no address yet (phase Pending)"),
    ],
)
async def test_a_pod_that_kubernetes_speaks_against_gets_nothing_and_the_reason_is_told(
    cluster: Cluster, changes: dict[str, Any], says: str
) -> None:
    await cluster.kubernetes.put(pod_document(cluster.pods[0], "uid-0", **changes))
    await until(lambda: cluster.ready == ["chat-b"])
    assert says in cluster.router.fleet.reasons()
    await cluster.kubernetes.put(pod_document(cluster.pods[0], "uid-0"))
    await until(lambda: cluster.ready == ["chat-a", "chat-b"])


async def test_a_pod_whose_sidecar_alone_is_not_ready_is_routed_to(cluster: Cluster) -> None:
    status = {
        "containerStatuses": [{"name": "engine", "ready": True}],
        "initContainerStatuses": [{"name": "sidecar", "ready": False}],
        "conditions": [{"type": "Ready", "status": "False"}],
    }
    await cluster.kubernetes.put(pod_document(cluster.pods[0], "uid-0", status=status))
    await asyncio.sleep(0.3)
    assert cluster.ready == ["chat-a", "chat-b"]


async def test_k1_another_pod_at_a_known_address_has_no_credit(cluster: Cluster) -> None:
    digest = "cd" * 16
    cluster.pods[0].snapshot = [{"type": "rows", "set": [[digest, 160, "ram", 1.0]], "drop": []}]
    await cluster.pods[0].cut_streams()
    fleet = cluster.router.fleet
    former = next(member for member in fleet.ready() if member.pod.name == "chat-a")
    await until(lambda: former.hints.num_rows == 1)
    cluster.pods[0].snapshot = []
    await cluster.kubernetes.delete("uid-0")
    await cluster.kubernetes.put(pod_document(cluster.pods[0], "uid-9"))
    await until(lambda: fleet.get(former.pod) is None and len(fleet.ready()) == 2)
    other = next(member for member in fleet.ready() if member.pod.name == "chat-a")
    assert other.pod.engine == former.pod.engine
    assert other is not former
    assert other.hints.num_rows == 0


async def test_k13_while_the_api_server_is_gone_the_last_pods_stay_and_the_reason_is_shown(cluster: Cluster) -> None:
    await cluster.kubernetes.stop()
    await until(lambda: bool(cluster.router.instruments.discovery_failures.value(reason="unreachable")))
    await asyncio.sleep(0.5)
    assert cluster.ready == ["chat-a", "chat-b"]
    assert await cluster.degraded() == ['pagoda_router_discovery_degraded{reason="unreachable"} 1.0']
    assert (await cluster.get("/ready"))[0] == 200
    await cluster.pods[0].stop_engine()
    await until(lambda: cluster.ready == ["chat-b"])  # by its own /ready
    assert "pods are not found" in cluster.router.fleet.reasons()
    await cluster.kubernetes.start()
    await until(lambda: cluster.router.fleet.reasons().count("pods are not found") == 0)
    assert await cluster.degraded() == []


async def test_a_role_that_is_taken_away_is_named_and_found_again(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    cluster.kubernetes.status = 403
    await cluster.kubernetes.cut()
    await until(lambda: any("reason=forbidden" in message for message in caplog.messages))
    assert any("pods is forbidden" in message for message in caplog.messages)
    assert await cluster.degraded() == ['pagoda_router_discovery_degraded{reason="forbidden"} 1.0']
    assert cluster.ready == ["chat-a", "chat-b"]
    await cluster.kubernetes.delete("uid-1")
    cluster.kubernetes.status = 200
    await until(lambda: cluster.ready == ["chat-a"])
    await until(lambda: any("found again" in message for message in caplog.messages))


async def test_a_watch_that_is_too_old_lists_again(cluster: Cluster) -> None:
    cluster.kubernetes.oldest = 1_000_000
    await cluster.kubernetes.cut()
    await until(lambda: cluster.router.instruments.discovery_failures.value(reason="gone") > 0)
    cluster.kubernetes.oldest = 0
    await cluster.kubernetes.delete("uid-1")
    await until(lambda: cluster.ready == ["chat-a"])
    assert cluster.kubernetes.num_lists > 1


async def test_what_is_written_on_a_pod_moves_nobody(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []
    former = cluster.router.fleet.update
    monkeypatch.setattr(cluster.router.fleet, "update", lambda sightings: shown.append(sightings) or former(sightings))
    members = cluster.router.fleet.ready()
    annotations = {"pagoda-kv.io/hit-rate-permille": "825"}
    await cluster.kubernetes.put(pod_document(cluster.pods[0], "uid-0", metadata={"annotations": annotations}))
    await cluster.kubernetes.bookmark()
    await asyncio.sleep(0.3)
    assert cluster.router.fleet.ready() == members


async def test_a_router_starts_without_an_api_server_and_says_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    (tmp_path / "digest").write_bytes(KEY)
    async with fake_kubernetes(tmp_path) as (kubernetes, path):
        monkeypatch.setenv("KUBECONFIG", str(path))
        await kubernetes.stop()
        settings = make_settings(tmp_path, pod_selector=SELECTOR, namespace=NAMESPACE)
        async with running(settings) as router:
            await until(lambda: "pods are not found: Client" in router.fleet.reasons())
            url = f"http://127.0.0.1:{router.port}/ready"
            async with aiohttp.ClientSession() as client, client.get(url) as response:
                assert response.status == 503
                assert "pods are not found" in (await response.json())["reason"]
            await kubernetes.start()
            await until(lambda: router.fleet.reasons() == "no pods are known")


async def test_a_router_that_knows_no_api_server_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    (tmp_path / "digest").write_bytes(KEY)
    with pytest.raises(StartError, match="--pod-selector"):
        async with running(make_settings(tmp_path, pod_selector=SELECTOR, namespace=NAMESPACE)):
            pass


class BrokenWatch:
    """Lists nothing, and fails every watch at once, or ends it without an error."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.num_lists = 0

    async def list(self) -> tuple[list[dict[str, Any]], str]:
        self.num_lists += 1
        return [], "1"

    async def watch(self, version: str) -> AsyncIterator[Any]:
        if self.error is not None:
            raise self.error
        yield PodEvent("BOOKMARK", {})

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("error", [DiscoveryError("server_error", "500"), DiscoveryError("gone", "410"), None])
async def test_a_watch_that_always_fails_or_ends_at_once_is_tried_ever_more_seldom(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    api = BrokenWatch(error)

    async def opened() -> Any:
        return api

    monkeypatch.setattr(kubernetes_pods.asyncio, "sleep", note)
    source = KubernetesPods(opened, Instruments(Metrics()))
    async with source.following(lambda sightings: None):
        while len(waits) < 20:
            await sleep(0)
    assert waits[0] <= 0.2
    assert all(15 <= wait <= 30 for wait in waits[10:20])


FULL: dict[str, Any] = pod_document(FakePod("chat-a"), "uid-1")


def without(*path: str) -> dict[str, Any]:
    document = json.loads(json.dumps(FULL))
    part = document
    for name in path[:-1]:
        part = part[name]
    del part[path[-1]]
    return document


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_pod_that_has_ended_is_none(phase: str) -> None:
    assert sighting_of({**FULL, "status": {**FULL["status"], "phase": phase}}) is None


@pytest.mark.parametrize(
    ("document", "withheld"),
    [
        (without("status"), "has no address yet (phase unknown)"),
        (without("spec"), "no container of it names a port 'http'"),
        (without("spec", "initContainers"), "no container of it names a port 'sidecar'"),
    ],
)
def test_a_pod_that_nobody_could_talk_to_is_expected(document: dict[str, Any], withheld: str) -> None:
    assert sighting_of(document) == Sighting("chat-a", None, withheld)


def test_an_ipv6_address_stands_in_brackets() -> None:
    sighting = sighting_of({**FULL, "status": {**FULL["status"], "podIP": "fd00::1"}})
    assert sighting is not None
    assert isinstance(sighting.pod, Pod)
    assert sighting.pod.engine.startswith("[fd00::1]:")
    assert sighting.pod.uid == "uid-1"
