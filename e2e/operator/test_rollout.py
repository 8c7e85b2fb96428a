"""Whatever happens to a rollout and to the operator meanwhile, the status is never ahead of reality.

Every version of the pool's status is recorded as the API server sent it, and held against what all pods were then.
"""

import asyncio
import contextlib
import json
import math
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from e2e.cluster.handle import Cluster
from e2e.operator.played import PULL_FAILS, Scene, eventually, playing
from pagoda_operator.kube.kinds import DEPLOYMENT, POD
from pagoda_operator.names import ENGINE, MEMCACHED, PART_LABEL, PARTS, ROUTER

Json = dict[str, Any]
REPLICAS = {ENGINE: 2, ROUTER: 2, MEMCACHED: 2}
GOOD, BETTER, BAD = "example.com/engine:good", "example.com/engine:better", "example.com/engine:bad"
NEW_AND_READY, NEW, OLD = "new and ready", "new", "old"
SHOWN_BY = {
    ("Ready", "True"): (ENGINE,),  # and see Record._check
    ("CacheReady", "True"): (ENGINE,),
    ("PoolReady", "True"): (ENGINE, MEMCACHED),
    ("RoutingReady", "True"): (ROUTER,),
    ("Progressing", "False", "Complete"): PARTS,
}
"""The parts of which exactly the wanted pods have to be there, new and ready, when a condition says so."""


def spec(image: str, policy: str = "CacheAware", node_mebibytes: int = 96, **cache: Any) -> Json:
    """Return a pool's spec; the arguments roll a part each, `cache` rolls none."""
    managed = {"replicas": REPLICAS[MEMCACHED], "memoryPerReplica": f"{node_mebibytes}Mi"}
    return {
        "replicas": REPLICAS[ENGINE],
        "engine": {"image": image, "resources": {"limits": {"memory": "2Gi"}}},
        "cache": {"ram": {"size": "64Mi"}, "pool": {"managed": managed}, **cache},
        "routing": {"replicas": REPLICAS[ROUTER], "policy": policy},
    }


def is_new(part: str, pod: Json, pool: Json) -> bool:
    """Whether a pod is as the pool's spec wants its part, by what its container is started with."""
    spec, [container] = pool["spec"], pod["spec"]["containers"]
    memory = spec["cache"]["pool"]["managed"]["memoryPerReplica"].removesuffix("Mi")
    mark = {
        ENGINE: spec["engine"]["image"],
        ROUTER: f"--policy {spec['routing']['policy']}",
        MEMCACHED: f"-m {memory}",
    }[part]
    return f" {mark} " in " ".join(("", container["image"], *container.get("args", ()), ""))


@dataclass
class Record:
    """Every version of a pool and of its pods, by the API server's own order of all of them."""

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
        said = {words for words in SHOWN_BY for pool in self.pools if says(pool, words)}
        assert said == set(SHOWN_BY), "everything was said that is held against what was"
        told = [pool for pool in self.pools if "status" in pool]
        observed = [pool["status"]["observedGeneration"] for pool in told]
        assert observed == sorted(observed), "no status of an older spec came after one of a newer"
        assert observed[-1] == newest["metadata"]["generation"]
        for pool in told:
            self._check(pool, pool["status"])

    async def _has_heard(self, pool: Json) -> bool:
        found, _ = await self.scene.api.list(POD, self.scene.namespace)
        pods = {pod["metadata"]["uid"]: version(pod) for pod in found}
        heard = {pod["metadata"]["uid"]: version(pod) for pod in self._alive()}
        return heard == pods and bool(self.pools) and version(self.pools[-1]) >= version(pool)

    def _check(self, pool: Json, status: Json) -> None:
        conditions = {entry["type"]: entry for entry in status["conditions"]}
        assert len(conditions) == 6
        assert {entry["observedGeneration"] for entry in conditions.values()} == {status["observedGeneration"]}
        pods = self._pods(pool)
        for words, parts in SHOWN_BY.items():
            if says(pool, words):
                wanted = {part: [NEW_AND_READY] * REPLICAS[part] for part in parts}
                assert {part: pods[part] for part in parts} == wanted, f"{words} was said before it was: {status}"
        if says(pool, ("Ready", "True")):
            routers = pods[ROUTER]
            assert NEW_AND_READY in routers, "no router answers"
            assert (OLD not in routers, len(routers)) == (True, REPLICAS[ROUTER]), "routers are not rolled out"
            counts = {status[key] for key in ("updatedReplicas", "readyReplicas", "replicas")}
            assert counts == {REPLICAS[ENGINE]}

    def _pods(self, pool: Json) -> dict[str, list[str]]:
        """Return how the pods of each part were when a version of the pool was written, by what it wanted then."""
        found: dict[str, list[str]] = {part: [] for part in PARTS}
        for pod in self._alive(version(pool)):
            part = pod["metadata"]["labels"][PART_LABEL]
            is_ready = bool(pod["status"].get("containerStatuses", [{}])[0].get("ready"))
            how = NEW_AND_READY if is_ready else NEW
            found[part].append(how if is_new(part, pod, pool) else OLD)
        return found

    def _alive(self, at: float = math.inf) -> list[Json]:
        """Return all pods as they were at a version of the cluster, without one as they were last heard of."""
        alive: dict[str, Json] = {}
        for what, pod in self.pods:
            if version(pod) <= at and what == "DELETED":
                alive.pop(pod["metadata"]["name"], None)
            elif version(pod) <= at:
                alive[pod["metadata"]["name"]] = pod
        return list(alive.values())


def version(found: Json) -> int:
    return int(found["metadata"]["resourceVersion"])


def says(pool: Json, words: tuple[str, ...]) -> bool:
    """Whether a condition of this type, status and reason speaks of the newest spec."""
    return any(
        (entry["type"], entry["status"], entry["reason"])[: len(words)] == words
        for entry in pool.get("status", {}).get("conditions", ())
        if entry["observedGeneration"] == pool["metadata"]["generation"]
    )


@contextlib.asynccontextmanager
async def recording(scene: Scene) -> AsyncIterator[Record]:
    record = Record(scene)
    pools = f"/apis/pagoda-kv.io/v1alpha1/namespaces/{scene.namespace}/inferencepools?watch=1"
    pods = f"/api/v1/namespaces/{scene.namespace}/pods?watch=1&labelSelector={PART_LABEL}"
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


async def want(scene: Scene, image: str, **changes: Any) -> int:
    """Edit the pool and return its new generation."""
    await scene.apply("chat", spec(image, **changes))
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


async def until_complete(scene: Scene) -> None:
    for words in (("Progressing", "False", "Complete"), ("Ready", "True", "Serving"), ("PoolReady", "True", "Proved")):
        await scene.until("chat", *words)


async def test_k9_good_bad_and_edited_rollouts_and_a_rollback_are_told_as_they_are(knowing: Cluster) -> None:
    async with playing(knowing, "rollout") as scene, recording(scene) as record:
        scene.kubelet.images[BAD] = PULL_FAILS
        scene.start()
        await want(scene, GOOD)
        await scene.until("chat", "Ready", "True", "Serving")

        await want(scene, BAD)
        assert "no such image" in await scene.until("chat", "Degraded", "True", "ImagePullBackOff")
        assert (await scene.condition("chat", "Ready"))[:2] == ("False", "RollingOut")
        assert await num_serving(scene, GOOD) == REPLICAS[ENGINE], (
            "no pod that serves was given up for one that does not"
        )

        await want(scene, BETTER)  # in the middle of the bad one
        await scene.until("chat", "Ready", "True", "Serving")
        assert await num_serving(scene, BETTER) == REPLICAS[ENGINE]

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

        await want(scene, BETTER, policy="LeastLoaded", idleSeconds=7)  # the routers alone
        await until_complete(scene)
        await want(scene, BETTER, policy="LeastLoaded", node_mebibytes=128, idleSeconds=7)  # memcached alone
        await until_complete(scene)
        assert {name for name in scene.kubelet.ready if "-engine-" in name} <= names_before
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
                await want(scene, image, policy="LeastLoaded" if image == BETTER else "CacheAware")
                await scene.until("chat", kind, "True")
            await until_complete(scene)
        finally:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
        assert killing.cancelled(), killing.exception()
        await record.check()
