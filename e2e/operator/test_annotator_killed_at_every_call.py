"""What watches, asks and annotates engine pods dies at any call, is started anew, and all pods say what they should.

Its calls are the list of pods, their watch, and a write for each pod and each thing to say. It dies before a call, and
after it with nobody hearing the answer, which of the watch is its first line. The API server is real, pods are a real
ReplicaSet's, their statuses are played and their two doors answer here; the rights are the chart's. How long who waits
is told in virtual time in `tests/operator/annotate/`.
"""

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.handle import Cluster
from e2e.operator.doors import open_doors
from e2e.operator.played import READY, Kubelet, eventually
from e2e.operator.support import lines_of, namespace_of, operator_identity, transport_of
from pagoda_operator import names
from pagoda_operator.annotate import Annotator
from pagoda_operator.annotate.instruments import AnnotateInstruments
from pagoda_operator.kube.api import Api
from pagoda_operator.kube.errors import UnreachableError
from pagoda_operator.kube.kinds import POD, Kind
from pagoda_operator.kube.lines import KubeLines
from pagoda_operator.kube.transport import Answer, KubeTransport, Request
from pagoda_operator.scrape import Fleet
from pagoda_operator.scrape.instruments import ScrapeInstruments
from pagoda_operator.scrape.pod_watch import PodWatch
from pagoda_protocol.annotations import CACHE_EPOCH, HIT_RATE_PERMILLE, PREFIX_HITS
from pagoda_runtime.metrics import Metrics
from tests.support.kube_faults import Dying, DyingLines, num_deaths

Json = dict[str, Any]
AT_ONCE = 4
NUM_PODS = 3
# Of the engine's container: the second is another epoch, which a pod has to say at once.
LIVES = ("first", "second")
NUM_CALLS = 2 + len(LIVES) * NUM_PODS
PATIENCE_SECONDS = 120.0
REPLICA_SET = Kind("apps/v1", "ReplicaSet", "replicasets")
SOMEBODY_ELSES = {"somebody/else": "stays"}
LABELS = {
    names.POOL_LABEL: "chat", names.PART_LABEL: names.ENGINE, "app.kubernetes.io/managed-by": names.MANAGER,
}  # fmt: skip
CONTAINER = {"image": "example.com/none:1"}
SPEC = {
    "schedulerName": "nobody",  # whose words on a pod without a node would come between
    "initContainers": [{"name": "sidecar", "restartPolicy": "Always", **CONTAINER}],
    "containers": [{"name": "engine", **CONTAINER}],
}
REPLICAS: Json = {
    "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "chat-engine-6f"},
    "spec": {
        "replicas": NUM_PODS, "selector": {"matchLabels": LABELS},
        "template": {"metadata": {"labels": LABELS, "annotations": SOMEBODY_ELSES}, "spec": SPEC},
    },
}  # fmt: skip


@dataclass(frozen=True)
class Ways:
    """To the API server: the operator's, and the story's."""

    operators: KubeTransport
    lines: KubeLines
    story: Api
    address: str
    """Where all pods answer."""


@dataclass
class Writes:
    """A transport that counts by pod which writes took effect, though whoever sent them is dead by then."""

    transport: KubeTransport
    num_tried: int = 0
    done: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    """A busy API server's, of which no answer came in time."""

    async def send(self, request: Request) -> Answer:
        """Send, and count."""
        if request.method == "GET":
            return await self.transport.send(request)
        self.num_tried += 1
        return await asyncio.shield(asyncio.ensure_future(self._write(request)))

    async def _write(self, request: Request) -> Answer:
        pod = request.path.rpartition("/")[2]
        try:
            answer = await self.transport.send(request)
        except UnreachableError:
            self.unknown[pod] += 1
            raise
        self.done[pod] += answer.status == 200
        return answer


class Life:
    """One life of what an operator does about engine pods: everything that it remembers of them."""

    def __init__(self, ways: Ways, writes: Writes, namespace: str, dies_at: int | None = None, after: bool = False):
        self._process = Dying(writes, dies_at, after)
        api, metrics = Api(self._process), Metrics()
        self._fleet = Fleet(ScrapeInstruments(metrics))
        self._instruments = AnnotateInstruments(metrics)
        annotator = Annotator(self._fleet, api, self._instruments)
        watch = PodWatch(api, DyingLines(ways.lines, self._process), self._fleet, [namespace])
        self._tasks = [asyncio.create_task(part()) for part in (watch.run, self._fleet.run, annotator.run)]

    @property
    def is_over(self) -> bool:
        """Whether it has died."""
        return self._process.died_at is not None

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> bool:
        """Wait until that holds and return True, or until it has died and return False."""

        async def is_enough() -> bool:
            return self.is_over or await holds()

        await eventually(is_enough, PATIENCE_SECONDS, every=0.05)
        return not self.is_over

    def wants_nothing_of(self, pods: list[Json]) -> bool:
        """Whether all have been asked, and none is to be written."""
        seen = [pod["metadata"] for pod in pods]
        reports = [self._fleet.report(each["namespace"], each["name"], each["uid"]) for each in seen]
        return None not in reports and self._instruments.waiting.value() == 0

    async def end(self) -> None:
        """Have it end, if it has not died."""
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        assert self.is_over or all(isinstance(end, asyncio.CancelledError) for end in ends), ends


@dataclass
class Pods:
    """The engine pods of one namespace."""

    api: Api
    namespace: str
    kubelet: Kubelet

    async def read(self) -> list[Json]:
        """Return them as they are."""
        return (await self.api.list(POD, self.namespace))[0]

    async def start(self, life: str) -> None:
        """Have the engines of all pods run in a container of this life."""
        for pod in await self.read():
            metadata = pod["metadata"]
            engine = {**READY, "restartCount": LIVES.index(life), "containerID": container_of(pod, life)}
            self.kubelet.pods[metadata["name"]] = {"engine": engine}
        await self.kubelet.play()

    async def are_told(self, life: str) -> bool:
        """Whether each pod bears what it says in this life, and what others have written on it."""
        pods = await self.read()
        return [pod["metadata"]["annotations"] for pod in pods] == [
            SOMEBODY_ELSES
            | {
                CACHE_EPOCH: f"{container_of(pod, life)}/{'b' * 32}",
                PREFIX_HITS: f"v1;{'c' * 32}:4096:ram:8",
                HIT_RATE_PERMILLE: "800",
            }
            for pod in pods
        ]

    async def check_owners(self) -> None:
        """Assert that the annotations are the annotator's and nobody else's, and that it owns nothing more."""
        for pod in await self.read():
            fields = pod["metadata"]["managedFields"]
            owners = {each["manager"] for each in fields if CACHE_EPOCH in str(each["fieldsV1"])}
            assert owners == {names.ANNOTATIONS_MANAGER}
            (ours,) = [each for each in fields if each["manager"] == names.ANNOTATIONS_MANAGER]
            annotations = {f"f:{key}": {} for key in (CACHE_EPOCH, PREFIX_HITS, HIT_RATE_PERMILLE)}
            assert (ours["operation"], ours["fieldsV1"]) == ("Apply", {"f:metadata": {"f:annotations": annotations}})


def container_of(pod: Json, life: str) -> str:
    """Return the id of a pod's engine container."""
    return f"played://{pod['metadata']['uid']}-{life}"


@contextlib.asynccontextmanager
async def pods_of(ways: Ways) -> AsyncIterator[Pods]:
    """Make a namespace with engine pods that the kubelet has not looked at yet."""
    async with namespace_of(ways.story, "annotated") as namespace:
        kubelet = Kubelet(ways.story, namespace, address_of=lambda _: ways.address)
        pods = Pods(ways.story, namespace, kubelet)
        replicas = REPLICAS | {"metadata": {**REPLICAS["metadata"], "namespace": namespace}}
        assert await ways.story.create(REPLICA_SET, replicas)

        async def are_there() -> bool:
            return len(await pods.read()) == NUM_PODS

        await eventually(are_there)
        yield pods


async def killed_at(ways: Ways, number: int, after: bool) -> bool:
    """Tell one story; return whether there was a call of this number at which to die."""
    has_died, writes = False, Writes(ways.operators)
    async with pods_of(ways) as pods:
        life = Life(ways, writes, pods.namespace, number, after)
        for container in LIVES:
            await pods.start(container)
            while not await life.until(functools.partial(pods.are_told, container)):
                await life.end()
                assert not has_died
                life, has_died = Life(ways, writes, pods.namespace), True
        await life.end()
        await ways.operators.settled()
        once_each = Counter({pod["metadata"]["name"]: len(LIVES) for pod in await pods.read()})
        assert writes.done <= once_each <= writes.done + writes.unknown
        await pods.check_owners()
        await look_once_more(ways, pods)
    return has_died


async def look_once_more(ways: Ways, pods: Pods) -> None:
    """Assert that an operator that knows nothing finds all pods as they should be."""
    writes, found = Writes(ways.operators), await pods.read()
    life = Life(ways, writes, pods.namespace)

    async def has_asked_all() -> bool:
        return life.wants_nothing_of(found) or writes.num_tried > 0

    assert await life.until(has_asked_all)
    await life.end()
    assert (writes.num_tried, await pods.read()) == (0, found)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_annotator_killed_at_any_call_comes_to_the_same_end(knowing: Cluster, after: bool) -> None:
    with (
        knowing.namespace("killer") as home,
        operator_identity(knowing, home, "watch.scope=Cluster") as who,
    ):
        deaths = asyncio.run(tell_all(knowing, who.kubeconfig, after))
    assert deaths >= NUM_CALLS


async def tell_all(cluster: Cluster, kubeconfig: Path, after: bool) -> int:
    async with (
        transport_of(kubeconfig) as operators,
        lines_of(kubeconfig) as lines,
        transport_of(cluster.kubeconfig) as story,
        open_doors(lambda: 0) as doors,
    ):
        ways = Ways(operators, lines, Api(story), doors.address_of("any"))
        return await num_deaths(lambda number: killed_at(ways, number, after), AT_ONCE)
