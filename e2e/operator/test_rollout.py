"""Whatever happens to a rollout and to the operator meanwhile, the status is never ahead of reality.

Every version of the pool's status is recorded as the API server sent it, and held against what the pods were then.
"""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from e2e.cluster.handle import Cluster
from e2e.operator.played import PULL_FAILS, Scene, eventually, playing
from pagoda_operator import names
from pagoda_operator.kube.kinds import DEPLOYMENT

Json = dict[str, Any]
REPLICAS = 2
GOOD, BETTER, BAD = "example.com/engine:good", "example.com/engine:better", "example.com/engine:bad"


def spec(image: str, **cache: Any) -> Json:
    engine = {"image": image, "resources": {"limits": {"memory": "2Gi"}}}
    return {"replicas": REPLICAS, "engine": engine, "cache": {"ram": {"size": "64Mi"}, **cache}}


@dataclass
class Record:
    """Every version of a pool and of its engine pods, by the API server's own order of all of them."""

    scene: Scene
    pools: list[Json] = field(default_factory=list)
    pods: list[tuple[str, Json]] = field(default_factory=list)
    """With what has happened: ADDED, MODIFIED or DELETED."""

    async def listen(self, path: str, hear: Callable[[str, Json], None]) -> None:
        """Hear every event of a watch."""
        process = await asyncio.create_subprocess_exec(
            "kubectl", "get", "--raw", path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            env=self.scene.cluster.environment(), limit=1 << 20,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                event = json.loads(line)
                hear(event["type"], event["object"])
        finally:
            process.kill()
            await process.wait()

    async def check(self) -> None:
        """Assert that nothing was said before it was true, and that every version was complete and in order."""
        newest = await self.scene.pool("chat")
        await eventually(lambda: self._has_heard(newest))
        told = [pool for pool in self.pools if "status" in pool]
        observed = [pool["status"]["observedGeneration"] for pool in told]
        assert observed == sorted(observed), "no status of an older spec came after one of a newer"
        assert observed[-1] == newest["metadata"]["generation"]
        for pool in told:
            self._check(pool, pool["status"])

    async def _has_heard(self, pool: Json) -> bool:
        return bool(self.pools) and version(self.pools[-1]) >= version(pool)

    def _check(self, pool: Json, status: Json) -> None:
        conditions = {entry["type"]: entry for entry in status["conditions"]}
        assert len(conditions) == 6
        assert {entry["observedGeneration"] for entry in conditions.values()} == {status["observedGeneration"]}
        is_of_newest = status["observedGeneration"] == pool["metadata"]["generation"]
        if conditions["Ready"]["status"] == "True" and is_of_newest:
            image = pool["spec"]["engine"]["image"]
            assert self._engines(version(pool)) == [(image, True)] * REPLICAS, "called ready before it was"
            assert status["updatedReplicas"] == status["readyReplicas"] == status["replicas"] == REPLICAS

    def _engines(self, at: int) -> list[tuple[str, bool]]:
        """Return image and readiness of all engine pods as they were at a version of the cluster."""
        alive: dict[str, Json] = {}
        for what, pod in self.pods:
            if version(pod) <= at and what == "DELETED":
                alive.pop(pod["metadata"]["name"], None)
            elif version(pod) <= at:
                alive[pod["metadata"]["name"]] = pod
        return [
            (pod["spec"]["containers"][0]["image"], bool(pod["status"].get("containerStatuses", [{}])[0].get("ready")))
            for pod in alive.values()
        ]


def version(found: Json) -> int:
    return int(found["metadata"]["resourceVersion"])


@contextlib.asynccontextmanager
async def recording(scene: Scene) -> AsyncIterator[Record]:
    record = Record(scene)
    pools = f"/apis/pagoda-kv.io/v1alpha1/namespaces/{scene.namespace}/inferencepools?watch=1"
    pods = f"/api/v1/namespaces/{scene.namespace}/pods?watch=1&labelSelector={names.PART_LABEL}={names.ENGINE}"
    tasks = [
        asyncio.create_task(record.listen(pools, lambda _, pool: record.pools.append(pool))),
        asyncio.create_task(record.listen(pods, lambda what, pod: record.pods.append((what, pod)))),
    ]
    try:
        yield record
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def want(scene: Scene, image: str, **cache: Any) -> int:
    """Edit the pool and return its new generation."""
    await scene.apply("chat", spec(image, **cache))
    return int((await scene.pool("chat"))["metadata"]["generation"])


async def let_the_deadline_pass(scene: Scene) -> None:
    """Have the controller call the rollout stuck, by a shorter deadline than a pool can have."""
    await scene.stop()
    name = {"namespace": scene.namespace, "name": "chat-engine"}
    spec = {"progressDeadlineSeconds": 1}
    deployment = {"apiVersion": DEPLOYMENT.api_version, "kind": DEPLOYMENT.kind, "metadata": name, "spec": spec}
    await scene.api.apply(DEPLOYMENT, deployment, manager="hurry")

    async def is_stuck() -> bool:
        found = await scene.api.get(DEPLOYMENT, scene.namespace, "chat-engine")
        return found is not None and "ProgressDeadlineExceeded" in json.dumps(found["status"])

    await eventually(is_stuck)
    scene.start()


async def num_serving(scene: Scene, image: str) -> int:
    pods = scene.kubelet.ready.values()
    return sum(pod["spec"]["containers"][0]["image"] == image for pod in pods)


async def test_k9_good_bad_and_edited_rollouts_and_a_rollback_are_told_as_they_are(knowing: Cluster) -> None:
    async with playing(knowing, "rollout") as scene, recording(scene) as record:
        scene.kubelet.images[BAD] = PULL_FAILS
        scene.start()
        await want(scene, GOOD)
        await scene.until("chat", "Ready", "True", "Serving")

        await want(scene, BAD)
        assert "no such image" in await scene.until("chat", "Degraded", "True", "ImagePullBackOff")
        assert (await scene.condition("chat", "Ready"))[:2] == ("False", "RollingOut")
        assert await num_serving(scene, GOOD) == REPLICAS, "no pod that serves was given up for one that does not"

        await want(scene, BETTER)  # in the middle of the bad one
        await scene.until("chat", "Ready", "True", "Serving")
        assert await num_serving(scene, BETTER) == REPLICAS

        await want(scene, BAD)
        await scene.until("chat", "Degraded", "True", "ImagePullBackOff")
        await let_the_deadline_pass(scene)
        assert "no such image" in await scene.until("chat", "Degraded", "True", "RolloutStuck")
        assert (await scene.condition("chat", "Ready"))[:2] == ("False", "RolloutStuck")
        assert (await scene.condition("chat", "Progressing"))[:2] == ("False", "RolloutStuck")
        await want(scene, BETTER)  # back to what served before
        await scene.until("chat", "Ready", "True", "Serving")
        assert (await scene.condition("chat", "Degraded"))[0] == "False"

        generation = await want(scene, BETTER, idleSeconds=7)  # live: no pod is touched
        names_before = set(scene.kubelet.ready)
        await scene.until("chat", "Ready", "True", "Serving")
        assert set(scene.kubelet.ready) == names_before
        assert scene.kubelet.live_generations["chat"] == generation
        await record.check()


async def test_k9_operators_that_die_at_random_calls_never_say_more_than_is_true(knowing: Cluster) -> None:
    async with playing(knowing, "rollout-cut") as scene, recording(scene) as record:
        scene.kubelet.images[BAD] = PULL_FAILS
        killing = asyncio.create_task(scene.keep_killing(random.Random(5)))
        try:
            for image, kind in (
                (GOOD, "Ready"),
                (BAD, "Degraded"),
                (BETTER, "Ready"),
                (BAD, "Degraded"),
                (GOOD, "Ready"),
            ):
                await want(scene, image)
                await scene.until("chat", kind, "True")
        finally:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
        assert killing.cancelled(), killing.exception()
        await record.check()
