"""What a leader does beside its queue, in virtual time and without a cluster."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pagoda_operator import process
from pagoda_operator.instruments import Instruments
from pagoda_operator.kube.api import Api
from pagoda_operator.kube.transport import Answer, Request
from pagoda_operator.work_queue import WorkQueue
from pagoda_runtime.metrics import Metrics
from tests.support.api_server import MemoryApiServer, answer_of
from tests.support.virtual_time import run_virtually


def story(told: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        run_virtually(told())

    test.__name__ = told.__name__
    return test


class Late:
    """An API server that learns what a pool is after some requests."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[Request] = []

    async def send(self, request: Request) -> Answer:
        self.requests.append(request)
        return self.answers.pop(0) if self.answers else answer_of(200, {"items": []})


@story
async def test_a_leader_waits_for_the_crd_and_for_rights() -> None:
    server = Late(answer_of(404, {}), answer_of(403, {"message": "no"}), answer_of(503, {}), answer_of(404, {}))
    begin = asyncio.get_running_loop().time()
    await process._until_served(Api(server), ("default",))
    assert [request.path for request in server.requests] == [
        "/apis/pagoda-kv.io/v1alpha1/namespaces/default/inferencepools"
    ] * 5
    assert 7.5 <= asyncio.get_running_loop().time() - begin <= 15


@pytest.mark.parametrize("namespaces", [(), ("a", "b")], ids=["the whole cluster", "two namespaces"])
def test_every_pool_is_looked_at_in_the_half_after_each_resync_and_not_all_at_once(namespaces: tuple[str, ...]) -> None:
    async def told() -> None:
        begin = asyncio.get_running_loop().time()
        server, looked_at = MemoryApiServer(), []
        for namespace in ("a", "b"):
            for number in range(5):
                key = ("pagoda-kv.io/v1alpha1", "inferencepools", namespace, f"pool-{number}")
                server.objects[key] = {"metadata": {"namespace": namespace, "name": f"pool-{number}"}}

        async def work(namespace: str, name: str) -> None:
            looked_at.append((asyncio.get_running_loop().time() - begin, (namespace, name)))

        queue = WorkQueue(work, Instruments(Metrics()))
        async with process._beside(queue.run, lambda: process._keep_resyncing(Api(server), namespaces, queue)):
            await asyncio.sleep(process.RESYNC_SECONDS - 1)
            assert looked_at == []
            await asyncio.sleep(process.RESYNC_SECONDS / 2 + 1)
            assert len({key for _, key in looked_at}) == len(looked_at) == 10
            assert len({time for time, _ in looked_at}) >= 5
            del server.objects["pagoda-kv.io/v1alpha1", "inferencepools", "a", "pool-0"]
            await asyncio.sleep(process.RESYNC_SECONDS)
            assert len(looked_at) == 20  # one went while nobody watched: what is remembered of it is to go too
            assert looked_at[10][1] == ("a", "pool-0")
            await asyncio.sleep(process.RESYNC_SECONDS)
            assert len(looked_at) == 29
            assert server.writes == []

    run_virtually(told())


@story
async def test_a_resync_that_fails_is_tried_again_at_the_next() -> None:
    server = Late(answer_of(503, {}))
    queue = WorkQueue(lambda *_: asyncio.sleep(0), Instruments(Metrics()))
    async with process._beside(lambda: process._keep_resyncing(Api(server), (), queue)) as (task,):
        await asyncio.sleep(process.RESYNC_SECONDS * 2.5)
        assert len(server.requests) == 2
        assert not task.done()


@story
async def test_what_fails_beside_the_others_ends_them_all_and_is_raised() -> None:
    ended: list[str] = []

    async def for_ever() -> None:
        try:
            await asyncio.sleep(10**6)
        finally:
            ended.append("the other")

    async def failing() -> None:
        await asyncio.sleep(1)
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        async with process._beside(for_ever, failing) as tasks:
            await process._first(*tasks)
    assert ended == ["the other"]
