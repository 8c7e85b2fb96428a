"""The operator as the program it is, with the chart's rights: how soon a pool is brought about, and what rest costs."""

import asyncio
import functools
import re
import time
from pathlib import Path
from typing import Any

from e2e.cluster.handle import Cluster
from e2e.operator.doors import open_doors
from e2e.operator.played import Scene, eventually, playing
from e2e.operator.support import operator_identity, running_operator
from pagoda_operator import names
from pagoda_operator.kube.kinds import CHILDREN, DEPLOYMENT, POD, POOL, Kind
from pagoda_protocol.metrics import OPERATOR_API_CALLS, OPERATOR_LEADER
from tests.operator.children.pools import MANAGED, manifest
from tests.support.program import Program

Json = dict[str, Any]
SPEC: Json = {"replicas": 2, "cache": {"ram": {"size": "64Mi"}, "pool": MANAGED}}
NUM_CHILDREN = 18
# Usual on two cores is 1.2 s, and `python -m bench restart` holds every pool below 2 s on a quiet machine. Here others
# work too, which may slow one pool down but hardly three; a wait before a pool or between its children slows all.
CREATION_SECONDS, CREATION_TRIES = 5.0, 3
IDLE_SECONDS = 60.0


async def test_a_pool_is_brought_about_at_once_and_an_idle_minute_writes_nothing(
    knowing: Cluster, tmp_path: Path
) -> None:
    async with (
        playing(knowing, "program") as scene,
        open_doors(lambda: scene.kubelet.live_generations.get("chat", 0)) as doors,
    ):
        scene.kubelet.address_of = doors.address_of
        with operator_identity(knowing, scene.namespace) as identity, running_operator(identity, tmp_path) as operator:
            await eventually(lambda: leads(operator))
            assert await least_seconds_to_all_children(scene) < CREATION_SECONDS

            await scene.apply("chat", SPEC)
            await scene.until("chat", "Ready", "True")
            await scene.until("chat", "PoolReady", "True")
            assert (await scene.pool("chat"))["status"]["cache"]["hitRate"] == "80%"
            await eventually(lambda: is_annotated(scene))
            await rest(scene, operator)
            assert doors.num_asked > 0

            pool = await scene.pool("chat")
            assert "finalizers" not in pool["metadata"]
            assert "annotations" not in pool["metadata"], "kopf keeps no notes on the user's object"
            assert {entry["manager"] for entry in pool["metadata"]["managedFields"]} == {"user", names.STATUS_MANAGER}
            assert await writers_of(scene, *CHILDREN) == {names.MANAGER}
            assert await writers_of(scene, POD) == {names.ANNOTATIONS_MANAGER}


async def leads(operator: Program) -> bool:
    return await asyncio.to_thread(operator.metric, OPERATOR_LEADER) == 1


async def least_seconds_to_all_children(scene: Scene) -> float:
    """Return the least of up to three pools, one after another, each of which goes again."""
    least = float("inf")
    for number in range(CREATION_TRIES):
        name = f"try-{number}"
        least = min(least, await seconds_to_all_children(scene, name))
        kubectl = scene.cluster.kubectl
        await asyncio.to_thread(kubectl, "-n", scene.namespace, "delete", "inferencepools.pagoda-kv.io", name)
        await eventually(functools.partial(is_gone, scene, name))
        if least < CREATION_SECONDS:
            break
    return least


async def seconds_to_all_children(scene: Scene, name: str) -> float:
    """Apply a pool of a part's size and tell how long it takes until the last of its children is there."""
    made = manifest(name, SPEC)
    made["metadata"]["namespace"] = scene.namespace
    begin = time.monotonic()
    await scene.api.apply(POOL, made, manager="user")

    async def has_its_routers_deployment() -> bool:  # the last of all
        return await scene.api.get(DEPLOYMENT, scene.namespace, f"{name}-router") is not None

    await eventually(has_its_routers_deployment, every=0.02)
    took = time.monotonic() - begin
    assert len(await versions(scene, f"{names.POOL_LABEL}={name}")) == NUM_CHILDREN
    return took


async def versions(scene: Scene, selector: str) -> dict[str, str]:
    """Return the versions of all objects with these labels."""
    lists = await asyncio.gather(*(scene.api.list(kind, scene.namespace, selector) for kind in CHILDREN))
    return {
        f"{each['kind']}/{each['metadata']['name']}": each["metadata"]["resourceVersion"]
        for found, _ in lists
        for each in found
    }


async def is_gone(scene: Scene, name: str) -> bool:
    return not await versions(scene, f"{names.POOL_LABEL}={name}")


async def is_annotated(scene: Scene) -> bool:
    pods, _ = await scene.api.list(POD, scene.namespace, names.selector_text("chat", names.ENGINE))
    return all("pagoda-kv.io/cache-epoch" in pod["metadata"]["annotations"] for pod in pods)


async def writers_of(scene: Scene, *kinds: Kind) -> set[str]:
    """Return which managers of ours have written to objects of these kinds."""
    lists = await asyncio.gather(*(scene.api.list(kind, scene.namespace, names.POOL_LABEL) for kind in kinds))
    metadata = [found["metadata"] for objects, _ in lists for found in objects]
    managers = {entry["manager"] for each in metadata for entry in each["managedFields"]}
    return {manager for manager in managers if manager.startswith("pagoda")}


async def rest(scene: Scene, operator: Program) -> None:
    """Assert that a minute in which nothing happens writes nothing, by our count and by the API server's."""
    await asyncio.sleep(5)  # annotations and Endpoints that were still on their way
    before, pool, writes = await versions(scene, names.POOL_LABEL), await scene.pool("chat"), await num_writes(operator)
    await asyncio.sleep(IDLE_SECONDS)
    assert await num_writes(operator) == writes
    assert await versions(scene, names.POOL_LABEL) == before
    assert await scene.pool("chat") == pool


async def num_writes(operator: Program) -> dict[str, float]:
    """Return how often the operator has called each verb that writes, by kind; renewing its Lease is no news."""
    _, text = await asyncio.to_thread(operator.get, "/metrics")
    found = re.findall(rf"^{OPERATOR_API_CALLS}_total{{(.*)}} (.*)$", text, re.MULTILINE)
    counts = {labels: float(value) for labels, value in found}
    assert counts, text[:500]
    return {
        labels: value
        for labels, value in counts.items()
        if 'kind="leases"' not in labels and not re.search('verb="(get|list|watch)"', labels)
    }
