"""The proxy while the router drains: what ends by itself, and what outlasts the drain."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.router import fakes
from tests.router.fakes import FakePod, answer, event, routed, until


async def test_a_drain_lets_streams_end_and_refuses_new_requests(tmp_path: Path) -> None:
    async def slow(request: web.Request, pod: FakePod) -> web.StreamResponse:
        await asyncio.sleep(0.6)
        return await answer(request, pod)

    async with aiohttp.ClientSession() as other:
        async with routed(tmp_path, num_pods=1, drain_seconds=5.0) as bench:
            bench.pods[0].behaviour = slow
            body = b'{"stream": true}'
            running = asyncio.create_task(fakes.post(other, f"{bench.url}/v1/completions", body))
            await until(lambda: bool(bench.pods[0].bodies))
            bench.router.start_draining()
            async with bench.chat() as refused, bench.client.get(f"{bench.url}/ready") as ready:
                assert (refused.status, ready.status) == (503, 503)
                assert "draining" in (await refused.json())["error"]["message"]
        assert (await running).endswith(b"data: [DONE]\n\n")
        with pytest.raises(aiohttp.ClientConnectorError):
            await other.get(bench.url)


async def test_a_drain_has_an_end(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as other:
        async with routed(tmp_path, num_pods=1, drain_seconds=0.3) as bench:
            bench.pods[0].behaviour = fakes.hold
            response = await other.post(f"{bench.url}/v1/completions", data=b'{"stream": true}')
            assert await response.content.readany() == event(0)
            bench.router.start_draining()
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 2.0
        assert b'"code": "router_stopping"' in await response.read()


async def test_a_request_without_an_answer_at_the_end_of_a_drain_is_told_so(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as other:
        async with routed(tmp_path, num_pods=1, drain_seconds=0.3) as bench:
            bench.pods[0].behaviour = fakes.say_nothing
            waiting = asyncio.create_task(other.post(f"{bench.url}/v1/completions", data=b"{}"))
            await until(lambda: bool(bench.pods[0].bodies))
            bench.router.start_draining()
        async with await waiting as response:
            assert response.status == 503
            assert (await response.json())["error"]["code"] == "router_stopping"
