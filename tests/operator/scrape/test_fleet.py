"""The fleet against real HTTP servers on loopback addresses, one per pod."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from pagoda_operator.scrape import Fleet, PodReport
from pagoda_operator.scrape.ask import DEADLINE_SECONDS, Ports
from pagoda_operator.scrape.instruments import ScrapeInstruments
from pagoda_operator.scrape.pod import EnginePod, read_pod
from pagoda_protocol import metrics as names
from pagoda_protocol.annotations import CACHE_EPOCH
from pagoda_runtime.metrics import Metrics
from pagoda_runtime.web import serving
from tests.operator.scrape.pods import engine_pod, ready, summary

Door = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Pod:
    """One pod's two doors, behind one port."""

    def __init__(self) -> None:
        self.ready: tuple[int, Any] = (200, ready())
        self.summary: tuple[int, Any] = (200, summary())
        self.door: Door | None = None
        self.num_asked = 0

    async def answer_ready(self, request: web.Request) -> web.StreamResponse:
        self.num_asked += 1
        if self.door is not None:
            return await self.door(request)
        return web.json_response(self.ready[1], status=self.ready[0])

    async def answer_summary(self, _: web.Request) -> web.StreamResponse:
        return web.json_response(self.summary[1], status=self.summary[0])


class World:
    """A fleet that runs, and the pods it asks: their address is 127.0.0.(number + 1)."""

    def __init__(self, fleet: Fleet, metrics: Metrics, pods: list[Pod]) -> None:
        self.fleet, self.metrics, self.pods = fleet, metrics, pods
        self.changes: list[tuple[str, str]] = []
        fleet.watch(lambda namespace, pool: self.changes.append((namespace, pool)))

    def show(self, number: int = 0, **changes: Any) -> bool:
        """Have the fleet see a pod; return whether its pool was told at once, which is then forgotten."""
        before = len(self.changes)
        self.fleet.pod_seen(engine_pod(number, address=f"127.0.0.{number + 1}", **changes))
        is_told = len(self.changes) > before
        del self.changes[before:]
        return is_told

    def report(self, number: int = 0) -> PodReport | None:
        return self.fleet.report("shop", f"chat-engine-6f-{number}", f"uid-chat-{number}")

    async def until(self, holds: Callable[[PodReport], bool], number: int = 0, seconds: float = 10.0) -> PodReport:
        async with asyncio.timeout(seconds):
            while (report := self.report(number)) is None or not holds(report):  # noqa: ASYNC110 - a state, no event
                await asyncio.sleep(0.01)
        return report


@contextlib.asynccontextmanager
async def world(num_pods: int = 1) -> AsyncIterator[World]:
    pods = [Pod() for _ in range(num_pods)]

    async def to_pod(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        pod = pods[int(request.transport.get_extra_info("sockname")[0].rsplit(".", 1)[1]) - 1]
        return await (pod.answer_ready if request.path == "/ready" else pod.answer_summary)(request)

    app = web.Application()
    app.router.add_get("/{path:.*}", to_pod)
    metrics = Metrics()
    async with serving(app, "0.0.0.0", 0, 0.0) as port:
        fleet = Fleet(ScrapeInstruments(metrics), ports=Ports(port, port))
        running = asyncio.create_task(fleet.run())
        try:
            yield World(fleet, metrics, pods)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


async def test_a_pod_is_asked_as_soon_as_it_is_seen_and_its_pool_is_told() -> None:
    async with world() as here:
        assert here.report() is None
        here.show()
        report = await here.until(lambda report: report.ready is True, seconds=2)
        assert report.is_proven(3)
        assert report.summary is not None
        assert report.summary["tiers"]["ram"] == {"state": "on", "reason": ""}
        assert here.changes == [("shop", "chat")]


async def test_no_more_pods_are_asked_at_a_time_than_there_are_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagoda_operator.scrape.fleet.MAX_CONCURRENT", 3)
    inside, most, may_answer = 0, 0, asyncio.Event()

    async def door(_: web.Request) -> web.StreamResponse:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await may_answer.wait()
        inside -= 1
        return web.json_response(ready())

    async with world(8) as here:
        for number, pod in enumerate(here.pods):
            pod.door = door
            here.show(number)
        async with asyncio.timeout(10):
            while inside < 3:  # noqa: ASYNC110 - a state, no event
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        assert inside == 3
        may_answer.set()
        for number in range(8):
            await here.until(lambda report: report.ready is True, number)
        assert most <= 3


async def test_answers_that_stay_the_same_are_told_once() -> None:
    async with world() as here:
        here.show()
        await here.until(lambda report: report.ready is True)
        first = here.report()
        here.show(ready=False)  # an event that has the pod asked again
        await here.until(lambda report: report is not first)
        assert here.changes == [("shop", "chat")]


async def test_a_pod_that_is_not_ready_yet_is_found_ready_within_seconds_without_an_event() -> None:
    async with world() as here:
        here.pods[0].ready = (503, {"status": "not ready", "reason": "warming up", "generation": None, "proof": None})
        here.show(ready=False)
        report = await here.until(lambda report: report.ready is False)
        assert report.reason == "warming up"
        here.pods[0].ready = (200, ready())
        await here.until(lambda report: report.ready is True, seconds=4)


async def test_a_pod_that_must_follow_newer_settings_is_asked_until_it_does() -> None:
    async with world() as here:
        here.show()
        await here.until(lambda report: report.generation == 3)
        here.fleet.expect("shop", "chat", 4, None)
        await asyncio.sleep(0.3)
        here.pods[0].ready = (200, ready(generation=4))
        await here.until(lambda report: report.generation == 4, seconds=4)
        assert here.changes == [("shop", "chat")] * 2


async def test_a_pool_made_anew_is_not_measured_by_its_predecessors_generation() -> None:
    async with world() as here:
        here.fleet.expect("shop", "chat", 7, None)
        here.fleet.expect("shop", "chat", 3, None)
        here.show()
        await here.until(lambda report: report.generation == 3)
        num_asked = here.pods[0].num_asked
        await asyncio.sleep(4)
        assert here.pods[0].num_asked == num_asked, "what has proved itself is asked seldom"


async def test_what_the_last_container_said_is_gone_once_another_one_runs() -> None:
    async with world() as here:
        here.show()
        await here.until(lambda report: report.ready is True)
        here.pods[0].ready = (503, {"reason": "starting"})
        here.show(container="containerd://e2")
        assert here.report() is None
        report = await here.until(lambda report: report.container_id == "containerd://e2")
        assert report.ready is False


async def test_an_answer_of_a_container_that_was_replaced_meanwhile_is_not_used() -> None:
    async with world() as here:
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def slowly(_: web.Request) -> web.StreamResponse:
            asked.set()
            await go_on.wait()
            return web.json_response(ready(generation=1))

        here.pods[0].door = slowly
        here.show()
        await asked.wait()
        here.show(container="containerd://e2")
        here.pods[0].door = None
        go_on.set()
        report = await here.until(lambda report: report.ready is True)
        assert (report.container_id, report.generation) == ("containerd://e2", 3)


async def test_one_slow_pod_delays_no_other() -> None:
    async def never(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    async with world(20) as here:
        for number, pod in enumerate(here.pods):
            pod.door = never if number < 10 else None
            here.show(number)
        began = asyncio.get_running_loop().time()
        for number in range(10, 20):
            await here.until(lambda report: report.ready is True, number)
        assert asyncio.get_running_loop().time() - began < DEADLINE_SECONDS
        report = await here.until(lambda report: report.ready is None)
        assert "did not answer within 2 s" in report.reason
        assert report.summary is not None  # the other door answered


async def huge(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x" * 65536)


async def elsewhere(_: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("http://127.0.0.1:9/secrets")


@pytest.mark.parametrize(("door", "reason"), [(huge, "longer than"), (elsewhere, "status 302")])
async def test_an_engine_that_answers_without_end_or_points_elsewhere_has_no_answer(door: Door, reason: str) -> None:
    async with world() as here:
        here.pods[0].door = door
        here.show()
        report = await here.until(lambda report: report.ready is None)
        assert reason in report.reason
        assert (
            here.metrics.exposition()
            .decode()
            .count(f'{names.OPERATOR_SCRAPES}_total{{container="engine",outcome="wrong"}} 1')
        )


async def test_a_pod_whose_engine_does_not_run_is_asked_for_its_sidecar_alone() -> None:
    async with world() as here:
        here.show(container=None)
        report = await here.until(lambda report: report.summary is not None)
        assert (report.ready, report.reason) == (None, "the container engine does not run")
        assert here.pods[0].num_asked == 0


async def test_annotations_alone_enqueue_nothing_and_ask_nobody() -> None:
    async with world() as here:
        assert here.show()
        await here.until(lambda report: report.ready is True)
        assert not here.show(version=2, annotations={"pagoda-kv.io/hit-rate-permille": "800"})
        assert not here.show(version=3, annotations={"somebody": "else"})
        assert here.show(version=4, ready=False)
        await asyncio.sleep(0.2)
        assert here.pods[0].num_asked == 2


async def test_a_pod_that_is_gone_or_going_has_no_report_and_is_asked_no_more() -> None:
    async with world(3) as here:
        for number in range(3):
            here.show(number)
            await here.until(lambda report: report.ready is True, number)
        here.show(0, deleted=True)
        here.fleet.pod_gone(engine_pod(1))
        here.fleet.forget_others("yard", [])
        assert here.report(2) is not None
        here.fleet.forget_others("shop", ["uid-chat-0"])  # the third one's end was missed
        assert [here.report(number) for number in range(3)] == [None, None, None]
        assert len(here.fleet) == 1
        here.fleet.forget_others(None, [])
        assert len(here.fleet) == 0


async def test_a_report_is_of_one_pod_and_not_of_its_namesake() -> None:
    async with world() as here:
        here.show()
        await here.until(lambda report: report.ready is True)
        assert here.fleet.report("shop", "chat-engine-6f-0", "another-uid") is None
        assert here.fleet.report("other", "chat-engine-6f-0", "uid-chat-0") is None


async def test_a_hit_rate_that_moves_a_little_is_no_news() -> None:
    async with world() as here:
        here.show()
        await here.until(lambda report: report.ready is True)
        for number, (ratio, num_told) in enumerate(((0.84, 1), (0.78, 1), (0.87, 2), (0.84, 2), (None, 3))):
            here.pods[0].summary = (200, summary(hit_ratio=ratio))
            here.show(sidecar=f"containerd://s{number + 2}")  # has it asked again
            await here.until(lambda report, ratio=ratio: (report.summary or {}).get("hit_ratio") == ratio)
            assert len(here.changes) == num_told, ratio


async def test_an_engine_that_has_proven_itself_is_asked_again_only_when_something_happened() -> None:
    async with world() as here:
        here.show()
        await here.until(lambda report: report.ready is True)
        assert here.pods[0].num_asked == 1
        here.pods[0].summary = (200, summary(block_tokens=32))
        here.show(sidecar="containerd://s2")  # the sidecar has restarted: a look, at it alone
        await here.until(lambda report: (report.summary or {}).get("block_tokens") == 32)
        assert here.pods[0].num_asked == 1
        here.pods[0].ready = (503, {"reason": "hangs"})
        here.show(sidecar="containerd://s2", ready=False)
        await here.until(lambda report: report.ready is False)
        assert here.pods[0].num_asked == 2


async def test_a_proven_engine_is_asked_again_when_its_sidecar_has_told_it_something_new() -> None:
    async with world() as here:
        here.show()
        await here.until(lambda report: report.ready is True)
        here.pods[0].summary = (200, summary(state="56" * 8))
        here.show(sidecar="containerd://s2")  # has it asked again
        report = await here.until(lambda report: (report.summary or {}).get("state") == "56" * 8)
        assert here.pods[0].num_asked == 2
        assert not report.is_proven(3), "its proof is of what was before"
        failed = {"ram": "failed: torn", "disk": "none", "pool": "ok"}
        here.pods[0].ready = (200, ready(proof={"generated": True, "tiers": failed, "state": "56" * 8}))
        await here.until(lambda report: (report.proof or {}).get("tiers") == failed, seconds=4)


async def test_a_pod_that_must_follow_another_list_of_nodes_is_asked_until_it_does() -> None:
    async with world() as here:
        here.show()
        report = await here.until(lambda report: report.ready is True)
        assert report.is_proven(3, "34" * 8)
        here.fleet.expect("shop", "chat", 3, "78" * 8)
        await asyncio.sleep(0.3)
        tiers = summary()["tiers"]
        tiers["pool"]["list"] = "78" * 8
        here.pods[0].summary = (200, summary(tiers=tiers))
        await here.until(lambda report: report.is_proven(3, "78" * 8), seconds=4)


async def test_what_came_of_writing_annotations_is_known_without_its_event() -> None:
    fleet = Fleet(ScrapeInstruments(Metrics()))
    seen: list[EnginePod] = []
    fleet.pod_seen(engine_pod(0, version=7))
    fleet.watch_pods(lambda pod, _: seen.append(pod))
    before = read_pod(engine_pod(0, version=7))
    assert before is not None
    fleet.pod_annotated(before, "8", {CACHE_EPOCH: "x", "another": "y"})
    assert fleet.has_seen("uid-chat-0", "8")
    assert [dict(pod.written) for pod in seen] == [{CACHE_EPOCH: "x"}]


async def test_what_came_of_a_write_does_not_undo_an_event_that_came_first() -> None:
    fleet = Fleet(ScrapeInstruments(Metrics()))
    fleet.pod_seen(engine_pod(0, version=7))
    before = read_pod(engine_pod(0, version=7))
    assert before is not None
    fleet.pod_seen(engine_pod(0, version=9))
    fleet.pod_annotated(before, "8", {})
    assert fleet.has_seen("uid-chat-0", "9")
    fleet.pod_gone(engine_pod(0, version=9))
    fleet.pod_annotated(before, "8", {})
    assert len(fleet) == 0
