"""The annotator dies at any of its calls, is started anew with no memory, and every pod is written as if nothing were.

In virtual time, as it is about who waits how long. On a real API server, watch included, it is told in `e2e/operator/`.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from pagoda_operator.annotate import Annotator
from pagoda_operator.annotate.instruments import AnnotateInstruments
from pagoda_operator.annotate.turns import POD_SECONDS
from pagoda_operator.kube.api import Api
from pagoda_operator.kube.kinds import POD
from pagoda_operator.kube.transport import Request
from pagoda_operator.names import ANNOTATIONS_MANAGER
from pagoda_operator.scrape import Fleet
from pagoda_operator.scrape.answers import Answers, read_ready, read_summary
from pagoda_operator.scrape.instruments import ScrapeInstruments
from pagoda_operator.scrape.pod_watch import SELECTOR, PodWatch
from pagoda_operator.scrape.report import make_report
from pagoda_protocol.annotations import CACHE_EPOCH, HIT_RATE_PERMILLE, PREFIX_HITS
from pagoda_runtime.metrics import Metrics
from tests.operator.scrape.pods import ARENA, as_bytes, engine_pod, ready, summary
from tests.support.api_server import MemoryApiServer
from tests.support.kube_faults import Dying
from tests.support.virtual_time import run_virtually

Annotations = Mapping[str, str]
NUM_PODS = 3
OTHER_ARENA = "cd" * 16
# What all pods say, and for how many seconds. The second comes while what it changes may not be written again yet.
SCRIPT: tuple[tuple[dict[str, Any], int], ...] = (
    ({"hit_ratio": 0.1}, 5),
    ({"hit_ratio": 0.9}, 60),
    ({"hit_ratio": 0.9, "epochs": {"device": None, "ram": OTHER_ARENA, "disk": None}}, 5),
    ({"hit_ratio": 0.2, "epochs": {"device": None, "ram": OTHER_ARENA, "disk": None}}, 120),
)


class Silence:
    """A watch on which nothing comes: nobody but the annotator writes."""

    async def read(self, path: str, query: Mapping[str, str], silence_seconds: float) -> AsyncGenerator[bytes, None]:
        """Wait for ever."""
        await asyncio.Event().wait()
        yield b""


class Life:
    """One life of an operator: everything that it remembers of pods."""

    def __init__(self, transport: Dying) -> None:
        self._transport = transport
        self._clock = asyncio.get_running_loop().time
        api = Api(transport)
        self._fleet = Fleet(ScrapeInstruments(Metrics()), clock=self._clock)
        annotator = Annotator(self._fleet, api, AnnotateInstruments(Metrics()), clock=self._clock)
        parts = (PodWatch(api, Silence(), self._fleet).run, annotator.run)
        self._tasks = [asyncio.create_task(part()) for part in parts]

    @property
    def is_over(self) -> bool:
        return self._transport.died_at is not None

    def hear(self, uids: list[str], words: Mapping[str, Any]) -> None:
        """Bring what a look at each pod would."""
        answers = Answers(read_ready(200, as_bytes(ready())), read_summary(200, as_bytes(summary(**words))))
        for uid in uids:
            self._fleet.take(uid, make_report(answers, "containerd://e1", self._clock()))

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class World:
    """An API server with pods, and each write that reached it."""

    def __init__(self) -> None:
        self.server = MemoryApiServer()
        self.written: dict[str, list[tuple[float, Annotations]]] = {}

    async def told(self, first: Dying) -> None:
        """Go through the script, beginning with a life that may die; each second all pods are asked."""
        for number in range(NUM_PODS):
            pod = engine_pod(number)
            pod["metadata"]["labels"] |= dict(term.split("=") for term in SELECTOR.split(","))
            assert await Api(self.server).create(POD, pod)
        uids = [pod["metadata"]["uid"] for pod in self.server.objects.values()]
        self.server.on_request = self._note
        life = Life(first)
        for words, seconds in SCRIPT:
            for _ in range(seconds):
                if life.is_over:
                    await life.end()
                    life = Life(Dying(self.server))
                await asyncio.sleep(0.5)
                life.hear(uids, words)
                await asyncio.sleep(0.5)
        assert not life.is_over
        await life.end()

    def _note(self, request: Request) -> None:
        if request.method != "GET":
            assert (request.method, request.query["fieldManager"]) == ("PATCH", ANNOTATIONS_MANAGER)
            assert request.body is not None
            metadata = request.body["metadata"]
            now = asyncio.get_running_loop().time()
            self.written.setdefault(metadata["name"], []).append((now, metadata["annotations"]))

    def annotations(self) -> dict[str, Annotations]:
        return {key[3]: pod["metadata"]["annotations"] for key, pod in self.server.objects.items()}


def check(world: World) -> None:
    """Assert that each pod was written once for each thing to say, of one epoch never twice in a pod's 30 seconds."""
    assert len(world.written) == NUM_PODS
    for writes in world.written.values():
        said = [(each[CACHE_EPOCH].rpartition("/")[2], each[HIT_RATE_PERMILLE]) for _, each in writes]
        assert said == [(ARENA, "100"), (ARENA, "900"), (OTHER_ARENA, "900"), (OTHER_ARENA, "200")]
        for index in (1, 3):  # the others are of another epoch, which may not wait
            assert writes[index][0] - writes[index - 1][0] >= POD_SECONDS


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_annotator_killed_at_any_call_writes_each_pod_once_and_none_too_soon(after: bool) -> None:
    async def tell(world: World, at: int | None) -> Dying:
        transport = Dying(world.server, at, after)
        await world.told(transport)
        return transport

    smooth = World()
    counter = run_virtually(tell(smooth, None))
    check(smooth)
    assert all(set(each) == {CACHE_EPOCH, PREFIX_HITS, HIT_RATE_PERMILLE} for each in smooth.annotations().values())
    assert counter.num_requests == 1 + NUM_PODS * len(SCRIPT)
    for at in range(counter.num_requests):
        world = World()
        assert run_virtually(tell(world, at)).died_at is not None
        check(world)
        assert world.annotations() == smooth.annotations(), f"killed at call {at}"
