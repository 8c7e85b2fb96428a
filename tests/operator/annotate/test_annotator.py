"""Writing annotations against an API server of one dictionary, with a fleet whose reports the test makes."""

import asyncio
import contextlib
import copy
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from pagoda_operator.annotate import Annotator
from pagoda_operator.annotate.instruments import AnnotateInstruments
from pagoda_operator.kube.errors import ConflictError, ForbiddenError, GoneError, KubeError, RefusedError
from pagoda_operator.kube.kinds import POD, Kind
from pagoda_operator.names import ANNOTATIONS_MANAGER
from pagoda_operator.scrape import Fleet
from pagoda_operator.scrape.answers import Answers, read_ready, read_summary
from pagoda_operator.scrape.instruments import ScrapeInstruments
from pagoda_operator.scrape.report import make_report
from pagoda_protocol.annotations import CACHE_EPOCH, HIT_RATE_PERMILLE, PREFIX_HITS
from pagoda_runtime.metrics import Metrics
from tests.operator.scrape.pods import ARENA, as_bytes, engine_pod, ready, summary
from tests.support.virtual_time import run_virtually

EPOCH = f"containerd://e1/{ARENA}"


@dataclass
class Server:
    """Pods by name; an apply is refused unless it is for the version that is there."""

    pods: dict[str, Any] = field(default_factory=dict)
    applied: list[dict[str, Any]] = field(default_factory=list)
    failures: list[KubeError] = field(default_factory=list)
    of_others: dict[str, str] = field(default_factory=dict)
    """Annotations that another manager has on all pods too."""

    def put(self, manifest: Any) -> Any:
        self.pods[manifest["metadata"]["name"]] = manifest
        return manifest

    async def apply(self, kind: Kind, manifest: dict[str, Any], *, manager: str) -> dict[str, Any]:
        assert (kind, manager) == (POD, ANNOTATIONS_MANAGER)
        self.applied.append(manifest)
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        wanted = manifest["metadata"]
        pod = copy.deepcopy(self.pods[wanted["name"]])
        if any(wanted[key] != pod["metadata"][key] for key in ("uid", "resourceVersion")):
            raise ConflictError("the object has been modified")
        pod["metadata"]["annotations"] = self.of_others | wanted["annotations"]
        pod["metadata"]["resourceVersion"] = str(int(wanted["resourceVersion"]) + 1)
        return dict(self.put(pod))

    async def apply_for_version(self, kind: Kind, manifest: dict[str, Any], *, manager: str) -> str:
        return str((await self.apply(kind, manifest, manager=manager))["metadata"]["resourceVersion"])


class World:
    """An annotator that runs; `say` is what a look at a pod would bring."""

    def __init__(self) -> None:
        self.clock = asyncio.get_running_loop().time
        self.server, self.metrics = Server(), Metrics()
        self.fleet = Fleet(ScrapeInstruments(Metrics()), clock=self.clock)
        self.annotator = Annotator(self.fleet, self.server, AnnotateInstruments(self.metrics), clock=self.clock)

    def show(self, number: int = 0, **changes: Any) -> None:
        self.fleet.pod_seen(self.server.put(engine_pod(number, **changes)))

    def say(self, number: int = 0, *, container: str = "containerd://e1", **changes: Any) -> None:
        answers = Answers(read_ready(200, as_bytes(ready())), read_summary(200, as_bytes(summary(**changes))))
        self.fleet.take(f"uid-chat-{number}", make_report(answers, container, self.clock()))

    async def annotate(self) -> None:
        """Have the first pod seen, heard and written."""
        self.show()
        self.say()
        await self.written()

    async def written(self, seconds: float = 0.01) -> list[dict[str, Any]]:
        """Let time pass; return the annotations of each write of that time."""
        begin = len(self.server.applied)
        await asyncio.sleep(seconds)
        return [manifest["metadata"]["annotations"] for manifest in self.server.applied[begin:]]


def story(told: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(told)
    def test(*arguments: Any, **named: Any) -> None:
        run_virtually(told(*arguments, **named))

    return test


@contextlib.asynccontextmanager
async def world() -> AsyncIterator[World]:
    here = World()
    running = asyncio.create_task(here.annotator.run())
    try:
        yield here
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


@story
async def test_a_pod_gets_its_annotations_when_it_has_said_something() -> None:
    async with world() as here:
        here.show()
        assert await here.written() == []
        here.say()
        (written,) = await here.written()
        assert written[CACHE_EPOCH] == EPOCH
        assert written[HIT_RATE_PERMILLE] == "800"
        assert written[PREFIX_HITS].startswith("v1;")
        metadata = here.server.applied[0]["metadata"]
        assert (metadata["uid"], metadata["resourceVersion"]) == ("uid-chat-0", "1")


@story
async def test_nothing_is_written_when_nothing_changed() -> None:
    async with world() as here:
        await here.annotate()
        for number in range(20):
            here.say(hit_ratio=0.8 + 0.001 * number)
            assert await here.written(60.0) == []
        assert len(here.server.applied) == 1


@story
async def test_a_pod_is_written_once_in_thirty_seconds_and_then_with_what_is_newest() -> None:
    async with world() as here:
        here.show()
        here.say(hit_ratio=0.1)
        await here.written()
        for second in range(29):
            here.say(hit_ratio=0.1 + 0.025 * (second + 1))
            assert await here.written(1.0) == []
        (written,) = await here.written(1.1)
        assert written[HIT_RATE_PERMILLE] == "825"


@story
async def test_a_new_epoch_is_written_at_once() -> None:
    async with world() as here:
        await here.annotate()
        here.say(epochs={"device": None, "ram": "cd" * 16, "disk": None})
        (written,) = await here.written(0.1)
        assert written[CACHE_EPOCH] == f"containerd://e1/{'cd' * 16}"


@story
async def test_an_engine_that_was_replaced_after_it_was_asked_is_not_annotated_as_its_predecessor() -> None:
    async with world() as here:
        here.show()
        here.say()
        # The pod changes on the server, and the event has not come yet.
        here.server.put(engine_pod(container="containerd://e2", version=2))
        await here.written()
        assert here.server.pods["chat-engine-6f-0"]["metadata"]["annotations"] == {}
        here.show(container="containerd://e2", version=2)
        assert await here.written(60.0) == []  # nothing is known of this one yet
        here.say(container="containerd://e2")
        (written,) = await here.written(1.0)
        assert written[CACHE_EPOCH] == f"containerd://e2/{ARENA}"


@story
async def test_what_somebody_else_removed_is_written_again_in_due_time() -> None:
    async with world() as here:
        await here.annotate()
        here.show(version=9, annotations={CACHE_EPOCH: EPOCH})
        assert await here.written() == []
        (written,) = await here.written(31.0)
        assert PREFIX_HITS in written


@story
async def test_a_pod_that_a_predecessor_annotated_rightly_is_not_written_and_wrongly_after_thirty_seconds() -> None:
    async with world() as here:
        here.show()
        here.say()
        (right,) = await here.written()
    async with world() as here:
        for number, annotations in enumerate((right, right | {HIT_RATE_PERMILLE: "25"})):
            here.show(number, annotations=annotations)
            here.say(number)
        assert await here.written(29.0) == []
        assert await here.written(2.0) == [right]
        assert here.server.applied[0]["metadata"]["uid"] == "uid-chat-1"


@story
async def test_a_hundred_pods_are_written_twenty_a_second() -> None:
    async with world() as here:
        for number in range(100):
            here.show(number)
            here.say(number)
        seconds = [len(await here.written(1.0)) for _ in range(7)]
        assert sum(seconds) == 100
        assert max(seconds) == 20


@story
async def test_a_pod_without_an_arena_loses_what_was_written_of_it() -> None:
    async with world() as here:
        await here.annotate()
        here.say(epochs={"device": None, "ram": None, "disk": None}, hits=[])
        assert await here.written(0.1) == [{HIT_RATE_PERMILLE: "800"}]


@story
async def test_what_another_manager_keeps_on_a_pod_is_known_to_be_there_still() -> None:
    async with world() as here:
        here.server.of_others = {CACHE_EPOCH: "another's"}
        await here.annotate()
        here.say(epochs={"device": None, "ram": None, "disk": None}, hits=[])
        assert await here.written(0.1) == [{HIT_RATE_PERMILLE: "800"}]
        assert await here.written(31.0) == [{HIT_RATE_PERMILLE: "800"}]  # it is tried again in due time


@story
async def test_an_epoch_whose_write_was_overtaken_by_another_change_is_written_at_once_all_the_same() -> None:
    async with world() as here:
        await here.annotate()
        here.say(epochs={"device": None, "ram": "cd" * 16, "disk": None})
        begun = len(here.server.applied)
        while len(here.server.applied) == begun:  # noqa: ASYNC110 - the very moment in which the write is under way
            await asyncio.sleep(0)
        annotations = here.server.pods["chat-engine-6f-0"]["metadata"]["annotations"]
        other = here.server.put(engine_pod(0, version=9, ready=False, annotations=annotations))
        assert here.fleet.put_off("uid-chat-0", "9", lambda: other)  # comes before the refusal of our write
        (written,) = await here.written(1.0)
        assert written[CACHE_EPOCH] == f"containerd://e1/{'cd' * 16}"


@pytest.mark.parametrize("rate", ["9" * 5000, "²", "-1", "x"])
@story
async def test_whatever_somebody_writes_into_a_rate_is_put_right(rate: str) -> None:
    async with world() as here:
        await here.annotate()
        here.show(version=9, annotations={HIT_RATE_PERMILLE: rate})
        (written,) = await here.written(31.0)
        assert written[HIT_RATE_PERMILLE] == "800"


@pytest.mark.parametrize("error", [ConflictError("x"), GoneError("x"), RefusedError("x")])
@story
async def test_k13_a_refused_write_is_counted_by_reason_and_holds_up_nobody(error: KubeError) -> None:
    async with world() as here:
        here.server.failures = [error]
        for number in range(2):
            here.show(number)
            here.say(number)
        await here.written(0.1)
        names = [manifest["metadata"]["name"] for manifest in here.server.applied]
        assert sorted(names) == ["chat-engine-6f-0", "chat-engine-6f-1"]
        counted = f'pagoda_operator_annotation_writes_total{{outcome="{error.code}"}} 1.0'
        assert counted in here.metrics.exposition().decode()


def waiting(here: World) -> float:
    (line,) = [
        line
        for line in here.metrics.exposition().decode().splitlines()
        if line.startswith("pagoda_operator_annotations_waiting ")
    ]
    return float(line.split()[1])


@pytest.mark.parametrize("error", [ConflictError("x"), RefusedError("x"), ForbiddenError("x")])
@story
async def test_who_was_tried_in_vain_waits_no_longer_until_there_is_something_to_write_again(error: KubeError) -> None:
    async with world() as here:
        here.server.failures = [error]
        here.show()
        here.say()
        assert waiting(here) == 1
        await here.written()
        assert (len(here.server.applied), waiting(here)) == (1, 0)


@story
async def test_a_pod_that_goes_while_it_waits_waits_no_longer() -> None:
    async with world() as here:
        here.show()
        here.say(hit_ratio=0.1)
        await here.written()
        here.say(hit_ratio=0.9)
        assert waiting(here) == 1
        here.fleet.pod_gone(engine_pod(0))
        assert waiting(here) == 0


@story
async def test_a_missing_right_is_no_storm_of_calls() -> None:
    async with world() as here:
        here.server.failures = [ForbiddenError("pods is forbidden")] * 1000
        for number in range(100):
            here.show(number)
            here.say(number)
        assert len(await here.written(60.0)) <= 12
        here.server.failures = []
        assert len(await here.written(60.0)) > 50  # and all is well once it is granted


@story
async def test_a_pod_that_is_gone_is_not_written() -> None:
    async with world() as here:
        for number in range(3):
            here.show(number)
            here.say(number)
        here.show(0, deleted=True)
        here.fleet.pod_gone(engine_pod(1))
        await here.written(1.0)
        assert [manifest["metadata"]["uid"] for manifest in here.server.applied] == ["uid-chat-2"]
