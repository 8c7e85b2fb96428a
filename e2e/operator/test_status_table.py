"""What is told of one pool whose pods fare as the table says, one row after the other, on a real control plane."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from e2e.cluster.handle import Cluster
from e2e.operator.played import CRASHED, KILLED, PULL_FAILS, PlayedFleet, Scene, playing
from pagoda_operator import names
from pagoda_operator.kube.kinds import POD
from tests.operator.children.pools import MANAGED
from tests.operator.reconcile.objects import Said, said

Json = dict[str, Any]
SPEC: Json = {"replicas": 2, "cache": {"ram": {"size": "64Mi"}, "pool": MANAGED}}
WELL = {
    "Ready": "True", "Progressing": "False", "Degraded": "False", "CacheReady": "True", "PoolReady": "True",
    "RoutingReady": "True",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """How the first pod of a part fares, what it says, and what is told of the pool then."""

    part: str
    containers: Mapping[str, Json] = field(default_factory=dict)
    words: Said | None = None
    told: Mapping[str, str] = field(default_factory=dict)
    degraded: str = ""
    """Reason, and words of the message."""


TABLE = {
    "an engine crashes": Row(
        "engine", {"engine": CRASHED}, told={"Ready": "False", "CacheReady": "Unknown", "PoolReady": "Unknown"},
        degraded="CrashLoopBackOff --previous), which ends: no weights",
    ),
    "an engine is killed for memory": Row(
        "engine", {"engine": KILLED}, told={"Ready": "False", "CacheReady": "Unknown", "PoolReady": "Unknown"},
        degraded="OOMKilled spec.engine.resources.limits.memory",
    ),
    "a sidecar crashes": Row(
        "engine", {"sidecar": CRASHED}, told={"CacheReady": "False", "PoolReady": "Unknown"},
        degraded="CrashLoopBackOff container sidecar",
    ),
    "a sidecar's image is gone": Row(
        "engine", {"sidecar": PULL_FAILS}, told={"CacheReady": "False", "PoolReady": "Unknown"},
        degraded="ImagePullBackOff no such image",
    ),
    "a tier fails its proof": Row(
        "engine", words=said(ram="failed: torn", pool="ok"), told={"CacheReady": "False"},
        degraded="TierProofFailed tier ram failed: torn",
    ),
    "a pod takes its KV for another model's": Row(
        "engine", words=said(pool="ok", summary={"namespace": "cd" * 32}), told={"CacheReady": "False"},
        degraded="NamespacesDiffer share no KV",
    ),
    "a pod cannot reach a node": Row(
        "engine", words=said(pool="failed: chat-memcached-1: refused"), told={"PoolReady": "False"},
        degraded="TierProofFailed chat-memcached-1: refused",
    ),
    "an engine does not answer for itself": Row(
        "engine", words=said(ready=False, reason="draining"), told={"Ready": "False", "Progressing": "True"},
    ),
    "a memcached node is killed for memory": Row(
        "memcached", {"memcached": KILLED}, told={"PoolReady": "False"},
        degraded="OOMKilled spec.cache.pool.managed.memoryPerReplica",
    ),
    "the router crashes": Row(
        "router", {"router": CRASHED}, told={"Ready": "False", "RoutingReady": "False"},
        degraded="CrashLoopBackOff container router",
    ),
}  # fmt: skip


async def test_the_table(knowing: Cluster) -> None:
    async with playing(knowing, "table") as scene:
        scene.kubelet.pending = True
        fleet = scene.start()
        await scene.apply("chat", SPEC)
        message = await scene.until("chat", "Degraded", "True", "Unschedulable")
        assert "no nodes available to schedule pods; add nodes" in message, "the scheduler's own words"
        scene.kubelet.pending = False
        await until(scene, WELL, "all is well")
        for case, row in TABLE.items():
            await play(scene, fleet, case, row)


async def play(scene: Scene, fleet: PlayedFleet, case: str, row: Row) -> None:
    """Let one pod fare badly, see it told, and let it get well again."""
    pods, _ = await scene.api.list(POD, scene.namespace, names.selector_text("chat", row.part))
    name = min(pod["metadata"]["name"] for pod in pods)
    usual, words = fleet.words, row.words
    scene.kubelet.pods[name] = row.containers
    if words is not None:
        fleet.words = lambda pod, found: words if pod == name else found
    await until(scene, {**WELL, **({"Degraded": "True"} if row.degraded else {}), **row.told}, case)
    _, found, message = await scene.condition("chat", "Degraded")
    reason, _, quoted = row.degraded.partition(" ")
    assert reason in (found, ""), case
    assert quoted in message, case
    del scene.kubelet.pods[name]
    fleet.words = usual
    await until(scene, WELL, case)


async def until(scene: Scene, told: Mapping[str, str], case: str) -> None:
    for kind, status in told.items():
        try:
            await scene.until("chat", kind, status)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error
