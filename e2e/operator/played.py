"""A real control plane without nodes, and a kubelet that is played: pods are real objects, their statuses are made up.

    scene.kubelet.images["example.com/engine:2"] = PULL_FAILS      every pod with this image, from now on
    scene.kubelet.pods["chat-engine-…"] = CRASHED                   one pod

What pods say of themselves comes from the same place: a pod whose main container is ready has proved what is mounted.
"""

import asyncio
import contextlib
import copy
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from e2e.cluster.handle import Cluster
from e2e.operator.support import transport_of
from pagoda_operator import names
from pagoda_operator.kube.api import Api
from pagoda_operator.kube.errors import ConflictError, FailedError, GoneError, UnreachableError
from pagoda_operator.kube.kinds import CONFIG_MAP, POD, POOL
from pagoda_operator.kube.transport import Transport
from pagoda_operator.pool_gauges import PoolGauges
from pagoda_operator.proofs import Report
from pagoda_operator.reconcile import Reconciler
from pagoda_protocol.live import LIVE_FILE, LiveSettingsError, parse_live
from pagoda_runtime.metrics import Metrics
from tests.operator.children.pools import IMAGES, PEERS, manifest
from tests.operator.reconcile.objects import Said, said
from tests.support.kube_faults import Dying, Killed

Json = dict[str, Any]
READY: Json = {"ready": True, "started": True, "state": {"running": {}}}
STARTING: Json = {"ready": False, "started": False, "state": {"running": {}}}
PULL_FAILS: Json = {"ready": False, "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
CRASHED: Json = {
    "ready": False,
    "restartCount": 3,
    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}},
    "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "no weights"}},
}
KILLED: Json = {**CRASHED, "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
POLL_SECONDS = 0.1
PATIENCE_SECONDS = 120.0


@dataclass
class Kubelet:
    """Plays the statuses of all pods of a namespace while `run` runs."""

    api: Api
    namespace: str
    images: dict[str, Json] = field(default_factory=dict)
    """How a main container with this image is; others are ready."""
    pods: dict[str, Mapping[str, Json]] = field(default_factory=dict)
    """How a pod's containers are, by name of the pod and the container."""
    pending: bool = False
    """No pod is looked after any more: what the scheduler says of it stands."""
    start_seconds: float = 0.2
    address_of: Callable[[str], str] | None = None
    """Gives a pod the address under which it answers; None: pods answer nobody."""
    ready: dict[str, Json] = field(default_factory=dict)
    """The pods whose main container is ready, by name, as they are in the cluster."""
    live_generations: dict[str, int] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)
    _played: dict[str, Json] = field(default_factory=dict)

    async def run(self) -> None:
        """Play for ever."""
        while True:
            begin = time.monotonic()
            if not self.pending:
                with contextlib.suppress(UnreachableError, FailedError):  # busy machines; a kubelet tries again too
                    await self.play()
            await asyncio.sleep(max(POLL_SECONDS, time.monotonic() - begin))

    async def play(self) -> None:
        """Give every pod the status it has to have by now."""
        found, _ = await self.api.list(POD, self.namespace)
        maps, _ = await self.api.list(CONFIG_MAP, self.namespace, names.POOL_LABEL)
        for each in maps:
            pool = each["metadata"]["labels"][names.POOL_LABEL]
            with contextlib.suppress(LiveSettingsError, KeyError):  # a program keeps what it had
                self.live_generations[pool] = parse_live(each["data"][LIVE_FILE]).generation
        alive = {pod["metadata"]["name"]: pod for pod in found if "deletionTimestamp" not in pod["metadata"]}
        self.ready = {name: pod for name, pod in self.ready.items() if name in alive}
        await asyncio.gather(*(self._give(name, pod) for name, pod in alive.items()))

    async def _give(self, name: str, pod: Json) -> None:
        status = self._status(name, pod)
        part = pod["metadata"]["labels"][names.PART_LABEL]
        is_ready = any(entry["name"] == part and entry["ready"] for entry in status["containerStatuses"])
        if not is_ready:
            self.ready.pop(name, None)
        if self._played.get(pod["metadata"]["uid"]) != status:
            metadata = {"namespace": self.namespace, "name": name, "uid": pod["metadata"]["uid"]}
            changed = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}
            try:
                await self.api.apply(POD, changed, manager="played-kubelet", subresource="status")
            except (ConflictError, GoneError):
                return
            self._played[pod["metadata"]["uid"]] = status
        if is_ready:
            self.ready[name] = pod

    def _status(self, name: str, pod: Json) -> Json:
        uid = pod["metadata"]["uid"]
        is_up = time.monotonic() - self._since.setdefault(uid, time.monotonic()) > self.start_seconds
        told = self.pods.get(name, {})

        def state(container: Json) -> Json:
            default = self.images.get(container["image"], READY if is_up else STARTING)
            made = {
                "restartCount": 0,
                "imageID": "",
                "image": container["image"],
                **told.get(container["name"], default),
            }
            if "running" in made.get("state", {}):
                made = {"containerID": f"played://{uid}-{container['name']}", **made}
            return {"name": container["name"], **copy.deepcopy(made)}

        statuses = [state(container) for container in pod["spec"]["containers"]]
        sidecars = [state(container) for container in pod["spec"].get("initContainers", ())]
        is_ready = all(entry["ready"] for entry in (*statuses, *sidecars))
        address = {} if self.address_of is None else {"podIP": self.address_of(name)}
        return {
            "phase": "Running",
            **address,
            "containerStatuses": statuses,
            **({"initContainerStatuses": sidecars} if sidecars else {}),
            "conditions": [
                {"type": "Ready", "status": str(is_ready), "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ],
        }


class PlayedFleet:
    """What pods say; a new one has asked nobody yet, for a moment."""

    def __init__(self, kubelet: Kubelet, silent_seconds: float = 0.3) -> None:
        self._kubelet = kubelet
        self._from = time.monotonic() + silent_seconds
        self.words: Callable[[str, Said], Said] = lambda _, words: words

    def report(self, namespace: str, pod_name: str, pod_uid: str) -> Report | None:
        pod = self._kubelet.ready.get(pod_name)
        if pod is None or time.monotonic() < self._from:
            return None
        pool = pod["metadata"]["labels"][names.POOL_LABEL]
        return self.words(pod_name, said(pool="ok", generation=self._kubelet.live_generations.get(pool)))

    def expect(self, namespace: str, pool: str, generation: int, nodes: str | None) -> None:
        pass


@dataclass
class Scene:
    """One namespace of a real control plane, with a played kubelet and an operator of this process."""

    cluster: Cluster
    namespace: str
    api: Api
    _transport: Transport
    kubelet: Kubelet
    calls: list[tuple[str, str, str]]
    """What the operator asked of the API server: verb, kind, answer."""
    pools: set[str] = field(default_factory=set)
    _operator: "asyncio.Task[None] | None" = None

    async def apply(self, name: str, spec: Mapping[str, Any]) -> None:
        """Apply a pool as a user would, and have the operator look after it."""
        made = manifest(name, spec)
        made["metadata"]["namespace"] = self.namespace
        await self.api.apply(POOL, made, manager="user")
        self.pools.add(name)

    def start(self) -> PlayedFleet:
        """Start an operator that knows nothing."""
        assert self._operator is None
        fleet = PlayedFleet(self.kubelet)
        self._operator = asyncio.create_task(self._operate(self._transport, fleet))
        return fleet

    async def keep_killing(self, chance: random.Random) -> None:
        """Run one operator after another, each until it dies at some call: before its first write, or after many."""
        while True:
            transport = Dying(self._transport, at=chance.randrange(100), after=chance.random() < 0.5)
            with contextlib.suppress(Killed):
                await self._operate(transport, PlayedFleet(self.kubelet, silent_seconds=0.1))

    async def stop(self) -> None:
        """Cut the operator off, wherever it is."""
        operator, self._operator = self._operator, None
        if operator is not None:
            operator.cancel()
            await asyncio.gather(operator, return_exceptions=True)
            assert operator.cancelled(), operator.exception()

    async def pool(self, name: str) -> Json:
        """Return a pool as it is."""
        found = await self.api.get(POOL, self.namespace, name)
        assert found is not None
        return found

    async def condition(self, name: str, kind: str) -> tuple[str, str, str]:
        """Return status, reason and message of a condition that is about the newest spec."""
        pool = await self.pool(name)
        for entry in pool.get("status", {}).get("conditions", ()):
            if entry["type"] == kind and entry["observedGeneration"] == pool["metadata"]["generation"]:
                return entry["status"], entry["reason"], entry["message"]
        return "Unknown", "NotTold", ""

    async def until(
        self, name: str, kind: str, status: str, reason: str | None = None, seconds: float = PATIENCE_SECONDS
    ) -> str:
        """Wait for a condition and return its message."""
        found = ("", "", "")

        async def holds() -> bool:
            nonlocal found
            found = await self.condition(name, kind)
            return found[0] == status and reason in (None, found[1])

        await eventually(holds, seconds, lambda: f"{name}: {kind} is not {status} {reason or ''} but {found}")
        return found[2]

    async def _operate(self, transport: Transport, fleet: PlayedFleet) -> None:
        api = Api(transport, "story", lambda *call: self.calls.append(call))
        reconciler = Reconciler(api, IMAGES, PEERS, fleet, PoolGauges(Metrics()))
        while True:
            begin = time.monotonic()
            for name in tuple(self.pools):
                with contextlib.suppress(UnreachableError, FailedError):  # as the queue, which tries again
                    await reconciler.reconcile(self.namespace, name)
            await asyncio.sleep(max(POLL_SECONDS, time.monotonic() - begin))  # leave a busy machine to the others


async def eventually(
    holds: Callable[[], Any],
    seconds: float = PATIENCE_SECONDS,
    complaint: Callable[[], str] = lambda: "",
    every: float = POLL_SECONDS,
) -> None:
    """Wait until an asynchronous question is answered with something true."""
    end = time.monotonic() + seconds
    while not await holds():
        assert time.monotonic() < end, f"not within {seconds} s: {complaint()}"
        await asyncio.sleep(every)


@contextlib.asynccontextmanager
async def playing(cluster: Cluster, prefix: str) -> AsyncIterator[Scene]:
    """Play in a namespace of its own; the operator is started by the story."""
    async with transport_of(cluster.kubeconfig) as transport:
        api = Api(transport)
        with cluster.namespace(prefix) as namespace:
            kubelet = Kubelet(api, namespace)
            scene = Scene(cluster, namespace, api, transport, kubelet, [])
            player = asyncio.create_task(kubelet.run())
            try:
                yield scene
            finally:
                player.cancel()
                await asyncio.gather(player, return_exceptions=True)
                await scene.stop()
                assert player.cancelled(), player.exception()
