"""The watch of engine pods, against a list and lines that the test writes."""

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

import pytest

from pagoda_operator.kube.errors import ForbiddenError, GoneError, KubeError, UnreachableError
from pagoda_operator.kube.kinds import Kind
from pagoda_operator.scrape import Fleet
from pagoda_operator.scrape.instruments import ScrapeInstruments
from pagoda_operator.scrape.pod import read_pod
from pagoda_operator.scrape.pod_watch import SELECTOR, PodWatch
from pagoda_protocol.annotations import CACHE_EPOCH
from pagoda_runtime.metrics import Metrics
from tests.operator.scrape.pods import engine_pod
from tests.support.virtual_time import run_virtually


class Server:
    """Lists `.pods` at `.version`; what is put into `.lines` comes out of the watch, an error ends it."""

    def __init__(self) -> None:
        self.pods: list[Any] = []
        self.version = "10"
        self.lines: asyncio.Queue[bytes | KubeError | None] = asyncio.Queue()
        self.lists: list[tuple[str | None, str]] = []
        self.watches: list[tuple[str, Mapping[str, str]]] = []
        self.refusals: list[KubeError] = []

    async def list(self, kind: Kind, namespace: str | None, selector: str = "") -> tuple[list[Any], str]:
        self.lists.append((namespace, selector))
        if self.refusals:
            raise self.refusals.pop(0)
        return list(self.pods), self.version

    async def read(self, path: str, query: Mapping[str, str], silence_seconds: float) -> AsyncGenerator[bytes, None]:
        self.watches.append((path, query))
        while (line := await self.lines.get()) is not None:
            if isinstance(line, KubeError):
                raise line
            yield line

    def say(self, kind: str, manifest: Any) -> None:
        self.lines.put_nowait(json.dumps({"type": kind, "object": manifest}, separators=(",", ":")).encode())


class CountingFleet(Fleet):
    """A fleet that counts how many pods it had to take in."""

    num_seen = 0

    def pod_seen(self, manifest: Mapping[str, Any]) -> None:
        self.num_seen += 1
        super().pod_seen(manifest)


class World:
    def __init__(self) -> None:
        self.server = Server()
        self.fleet = CountingFleet(ScrapeInstruments(Metrics()), clock=asyncio.get_running_loop().time)
        self.changes: list[tuple[str, str]] = []
        self.fleet.watch(lambda *key: self.changes.append(key))

    def knows(self, number: int, version: object = 1) -> bool:
        return self.fleet.has_seen(f"uid-chat-{number}", str(version))


@contextlib.asynccontextmanager
async def world(*pods: Any, namespaces: tuple[str, ...] = ()) -> AsyncIterator[World]:
    here = World()
    here.server.pods = list(pods)
    watch = asyncio.create_task(PodWatch(here.server, here.server, here.fleet, namespaces).run())
    await asyncio.sleep(0.01)
    try:
        yield here
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


def story(told: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @functools.wraps(told)
    def test() -> None:
        run_virtually(told())

    return test


@story
async def test_pods_are_listed_and_then_followed_from_there() -> None:
    async with world(engine_pod(0)) as here:
        assert here.knows(0)
        here.server.say("ADDED", engine_pod(1, version=11))
        here.server.say("MODIFIED", engine_pod(0, version=12, ready=False))
        await asyncio.sleep(0.01)
        assert here.knows(1, 11)
        assert here.knows(0, 12)
        here.server.say("DELETED", engine_pod(0, version=13))
        await asyncio.sleep(0.01)
        assert len(here.fleet) == 1
        assert here.server.lists == [(None, SELECTOR)]
        ((path, query),) = here.server.watches
        assert path == "/api/v1/pods"
        assert (query["resourceVersion"], query["labelSelector"]) == ("10", SELECTOR)


@story
async def test_a_pool_is_told_of_its_pods_but_not_of_annotations() -> None:
    async with world(engine_pod(0)) as here:
        here.server.say("MODIFIED", engine_pod(0, version=11, annotations={"any": "thing"}))
        await asyncio.sleep(0.01)
        assert here.changes == [("shop", "chat")]
        here.server.say("MODIFIED", engine_pod(0, version=12, ready=False))
        here.server.say("DELETED", engine_pod(0, version=13))
        await asyncio.sleep(0.01)
        assert here.changes == [("shop", "chat")] * 3


@story
async def test_an_event_of_a_version_that_is_known_is_not_taken_in_again() -> None:
    async with world(engine_pod(0)) as here:
        here.fleet.pod_seen(engine_pod(0, version=11))  # what came of a write of ours
        before = here.fleet.num_seen
        here.server.say("MODIFIED", engine_pod(0, version=11))
        await asyncio.sleep(0.01)
        assert here.fleet.num_seen == before
        here.server.lines.put_nowait(None)
        await asyncio.sleep(1)
        assert here.server.watches[-1][1]["resourceVersion"] == "11"  # but the watch goes on from there


@story
async def test_an_event_that_overtakes_the_answer_of_our_write_is_not_taken_in_again() -> None:
    async with world(engine_pod(0)) as here:
        before, seen = read_pod(engine_pod(0)), here.fleet.num_seen
        assert before is not None
        with here.fleet.being_written("uid-chat-0"):
            here.server.say("MODIFIED", engine_pod(0, version=11, annotations={CACHE_EPOCH: "x"}))
            await asyncio.sleep(0.01)
            here.fleet.pod_annotated(before, "11", {CACHE_EPOCH: "x"})
        assert here.knows(0, 11)
        assert here.fleet.num_seen == seen


@pytest.mark.parametrize("is_written", [True, False], ids=["after ours", "instead of ours"])
def test_an_event_of_another_change_during_our_write_is_taken_in_after_it(is_written: bool) -> None:
    @story
    async def told() -> None:
        async with world(engine_pod(0)) as here:
            before = read_pod(engine_pod(0))
            assert before is not None
            with here.fleet.being_written("uid-chat-0"):
                here.server.say("MODIFIED", engine_pod(0, version=11, annotations={CACHE_EPOCH: "x"}))
                here.server.say("MODIFIED", engine_pod(0, version=12, ready=False))
                here.server.say("ADDED", engine_pod(1, version=13))
                await asyncio.sleep(0.01)
                assert here.knows(0, 1), "put off"
                assert here.knows(1, 13), "others are not"
                if is_written:
                    here.fleet.pod_annotated(before, "11", {CACHE_EPOCH: "x"})
            assert here.knows(0, 12)
            assert here.changes.count(("shop", "chat")) == 3

    told()


@story
async def test_a_pod_that_goes_during_our_write_stays_gone() -> None:
    async with world(engine_pod(0)) as here:
        with here.fleet.being_written("uid-chat-0"):
            here.server.say("MODIFIED", engine_pod(0, version=11))
            here.server.say("DELETED", engine_pod(0, version=12))
            await asyncio.sleep(0.01)
        assert len(here.fleet) == 0


@story
async def test_what_was_put_off_does_not_undo_what_a_list_brought_later() -> None:
    async with world(engine_pod(0)) as here:
        with here.fleet.being_written("uid-chat-0"):
            here.server.say("MODIFIED", engine_pod(0, version=11))
            here.server.pods = [engine_pod(0, version=20)]
            here.server.say("ERROR", {"code": 410, "message": "too old resource version"})
            await asyncio.sleep(1)
        assert here.knows(0, 20)


@story
async def test_an_event_that_was_put_off_and_is_garbled_changes_nothing() -> None:
    async with world(engine_pod(0)) as here:
        with here.fleet.being_written("uid-chat-0"):
            line = b'{"type":"MODIFIED","object":{"metadata":{"uid":"uid-chat-0","resourceVersion":"11"'
            here.server.lines.put_nowait(line)
            await asyncio.sleep(0.01)
        assert here.knows(0, 1)
        here.server.say("MODIFIED", engine_pod(0, version=12))
        await asyncio.sleep(0.01)
        assert here.knows(0, 12)


@story
async def test_a_watch_that_ended_goes_on_from_the_last_version_that_was_told() -> None:
    async with world() as here:
        here.server.say("ADDED", engine_pod(0, version=15))
        here.server.say("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "40"}})
        here.server.lines.put_nowait(None)
        await asyncio.sleep(1)
        assert [query["resourceVersion"] for _, query in here.server.watches] == ["10", "40"]
        assert len(here.server.lists) == 1


@story
async def test_what_ended_while_nobody_watched_is_forgotten_with_the_next_list() -> None:
    async with world(engine_pod(0), engine_pod(1)) as here:
        here.server.pods = [engine_pod(1, version=20)]
        here.server.version = "30"
        here.server.say("ERROR", {"code": 410, "message": "too old resource version"})
        await asyncio.sleep(1)
        assert not here.knows(0)
        assert here.knows(1, 20)
        assert here.server.watches[-1][1]["resourceVersion"] == "30"


@story
async def test_a_refused_watch_with_a_version_too_old_is_listed_anew() -> None:
    async with world() as here:
        here.server.lines.put_nowait(GoneError("too old"))
        await asyncio.sleep(1)
        assert len(here.server.lists) == 2


@story
async def test_a_watch_that_ended_after_a_while_is_begun_again_at_once() -> None:
    async with world() as here:
        await asyncio.sleep(300)
        here.server.lines.put_nowait(None)
        await asyncio.sleep(0.01)
        here.server.lines.put_nowait(None)
        await asyncio.sleep(0.01)
        assert len(here.server.watches) == 2


@pytest.mark.parametrize("line", [None, GoneError("too old"), b"<html>"], ids=["nothing", "too old", "garbled"])
def test_a_watch_that_always_ends_at_once_is_begun_ever_more_seldom(line: bytes | GoneError | None) -> None:
    @story
    async def told() -> None:
        async with world() as here:
            for _ in range(1000):
                here.server.lines.put_nowait(line)
            await asyncio.sleep(300)
            assert 8 <= len(here.server.watches) <= 30

    told()


@story
async def test_a_garbled_line_is_a_reason_to_list_anew() -> None:
    async with world() as here:
        for line in (b"nonsense", b"{}", b"[]", b'{"type":"ADDED","object":7}'):
            here.server.lines.put_nowait(line)
            await asyncio.sleep(10)
        assert len(here.server.lists) == 5


@story
async def test_an_api_server_that_is_away_is_asked_ever_more_seldom_and_pods_stay_known() -> None:
    async with world(engine_pod(0)) as here:
        here.server.refusals = [ForbiddenError("no")] * 1000
        for _ in range(1000):
            here.server.lines.put_nowait(UnreachableError("away"))
        await asyncio.sleep(300)
        assert 8 <= len(here.server.watches) <= 30
        assert here.knows(0)


@story
async def test_each_namespace_has_a_watch_of_its_own() -> None:
    async with world(namespaces=("shop", "yard")) as here:
        assert sorted(str(namespace) for namespace, _ in here.server.lists) == ["shop", "yard"]
        assert sorted(path for path, _ in here.server.watches) == [
            "/api/v1/namespaces/shop/pods", "/api/v1/namespaces/yard/pods",
        ]  # fmt: skip
