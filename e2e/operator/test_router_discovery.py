"""A router finds the pods of its pool on a real API server, with the rights of its rendered Role and no others.

The pods are made by hand and their status is written as a kubelet would: nothing runs but the answers behind them.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from e2e.cluster.handle import Cluster
from pagoda_operator import names
from pagoda_operator.children import render
from tests.operator.children.pools import IMAGES, POOLS, SEEN, owner_of
from tests.router.fake_kubernetes import pod_document
from tests.router.fakes import KEY, MODEL, FakePod
from tests.support.ports import free_port

KEPT = "pagoda-kv.io/story"  # as long as it is there a deleted pod goes on terminating
POOL = next(iter(POOLS.values()))
SECONDS = 60.0


class Story:
    """A namespace, fake engines in it, and a router process."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.folder = folder
        self.port = free_port()
        self.account = names.child_name(POOL.name, names.ROUTER)

    async def kubectl(self, *arguments: str, given: Any = None) -> str:
        text = None if given is None else json.dumps(given)
        return await asyncio.to_thread(
            self.cluster.kubectl, "--namespace", self.namespace, *arguments, input=text, timeout=SECONDS
        )

    def children(self, *kinds: str) -> list[dict[str, Any]]:
        """What the operator gives the pool's router, without an owner that this cluster does not know."""
        owner = replace(owner_of(POOL), namespace=self.namespace)
        wanted = [child for child in render(POOL, owner, IMAGES, SEEN) if child["kind"] in kinds]
        wanted = [child for child in wanted if child["metadata"]["name"] == self.account]
        for child in wanted:
            del child["metadata"]["ownerReferences"]
        assert len(wanted) == len(kinds)
        return wanted

    async def apply(self, *kinds: str) -> None:
        await self.kubectl("apply", "--server-side", "-f", "-", given={"apiVersion": "v1", "kind": "List",
                                                                       "items": self.children(*kinds)})  # fmt: skip

    async def make_pod(self, pod: FakePod) -> None:
        document = pod_document(pod, "")
        for container in (*document["spec"]["initContainers"], *document["spec"]["containers"]):
            container["image"] = "localhost/nothing:1"
        document["spec"]["initContainers"][0]["restartPolicy"] = "Always"
        document["spec"]["schedulerName"] = "nobody"
        labels = dict(names.selector(POOL.name, names.ENGINE))
        document["metadata"] = {"name": pod.name, "labels": labels, "finalizers": [KEPT]}
        given = {"apiVersion": "v1", "kind": "Pod", **document}
        await self.kubectl("create", "-f", "-", given={**given, "status": {}})
        await self.say(pod)

    async def say(self, pod: FakePod, is_ready: bool = True) -> None:
        """Write the pod's status as a kubelet does."""
        state = {"running": {"startedAt": "2026-11-30T00:00:00Z"}}
        container = {"name": "engine", "ready": is_ready, "image": "i", "imageID": "i", "restartCount": 0,
                     "state": state}  # fmt: skip
        status = {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}],
                  "containerStatuses": [container]}  # fmt: skip
        await self.kubectl(
            "patch", "pod", pod.name, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status})
        )

    async def release(self, name: str) -> None:
        """Let a terminating pod go."""
        await self.kubectl("patch", "pod", name, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')

    async def get(self, path: str) -> tuple[int, str]:
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"http://127.0.0.1:{self.port}{path}") as response,
        ):
            return response.status, await response.text()

    async def pods_ready(self) -> int:
        with contextlib.suppress(aiohttp.ClientError):
            status, text = await self.get("/ready")
            return json.loads(text)["pods_ready"] if status == 200 else 0
        return -1

    async def until_ready(self, number: int) -> None:
        async with asyncio.timeout(SECONDS):
            while await self.pods_ready() != number:  # noqa: ASYNC110 - another process tells nobody
                await asyncio.sleep(0.1)

    @contextlib.asynccontextmanager
    async def router(self) -> AsyncIterator[None]:
        (self.folder / "digest").write_bytes(KEY)
        kubeconfig = await asyncio.to_thread(self.cluster.service_account_kubeconfig, self.namespace, self.account)
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        environment.pop("KUBERNETES_SERVICE_HOST", None)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pagoda_router", "--name", "router", "--host", "127.0.0.1", "--port", str(self.port),
            "--model-name", MODEL, "--secret-dir", str(self.folder), "--settings-dir", str(self.folder),
            "--pod-selector", names.selector_text(POOL.name, names.ENGINE), "--namespace", self.namespace,
            "--policy", "RoundRobin", "--block-tokens", "16", "--drain-seconds", "0", env=environment,
        )  # fmt: skip
        try:
            yield
        finally:
            process.terminate()
            await process.wait()


@pytest.fixture
def namespace(control_plane: Cluster) -> Any:
    with control_plane.namespace("discovery") as name:
        yield name


@pytest.mark.timeout(300)
async def test_a_router_finds_its_pods_with_the_rights_that_the_operator_gives_it(
    control_plane: Cluster, namespace: str, tmp_path: Path
) -> None:
    story = Story(control_plane, namespace, tmp_path)
    pods = [FakePod("chat-a"), FakePod("chat-b")]
    async with contextlib.AsyncExitStack() as stack:
        for pod in pods:
            stack.push_async_callback(pod.stop)
            await pod.start()
            await story.make_pod(pod)
        await story.apply("ServiceAccount")
        await stack.enter_async_context(story.router())

        await story.until_ready(0)  # it runs, and may see nothing yet
        async with asyncio.timeout(SECONDS):
            while "answers 403" not in (await story.get("/ready"))[1]:  # noqa: ASYNC110 - likewise
                await asyncio.sleep(0.1)
        assert 'pagoda_router_discovery_degraded{reason="forbidden"} 1.0' in (await story.get("/metrics"))[1]

        await story.apply("Role", "RoleBinding")
        await story.until_ready(2)
        assert "pagoda_router_discovery_degraded{" not in (await story.get("/metrics"))[1]

        await story.say(pods[0], is_ready=False)
        await story.until_ready(1)
        await story.say(pods[0])
        await story.until_ready(2)

        await story.kubectl("delete", "pod", "chat-a", "--wait=false")
        await story.until_ready(1)
        listed = json.loads(await story.kubectl("get", "pod", "chat-a", "-o", "json"))
        assert listed["metadata"]["deletionTimestamp"]

        await story.release("chat-a")
        before = pods[0].num_streams
        await story.make_pod(pods[0])  # the same name and address, another pod
        await story.until_ready(2)
        for pod in pods:
            await story.release(pod.name)  # or the namespace could not go
        assert pods[0].num_streams == before + 1, "its hints are asked for anew, nothing of the former one is believed"
