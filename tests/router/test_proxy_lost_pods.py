"""The proxy against pods that refuse, die, hang and leave: what goes to another pod, and what its client is told."""

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web

from pagoda_router.proxy import Limits
from pagoda_router.upstream import Deadlines
from tests.router import fakes
from tests.router.fakes import STREAM, FakePod, answer, event, routed, until


async def die_before_headers(request: web.Request, _: FakePod) -> web.StreamResponse:
    fakes.reset(request)
    raise asyncio.CancelledError


async def die_after_headers(request: web.Request, _: FakePod) -> web.StreamResponse:
    stream = await fakes.begin_stream(request)
    fakes.close(request)
    return stream


async def end_without_an_event(request: web.Request, _: FakePod) -> web.StreamResponse:
    return await fakes.begin_stream(request)


async def die_inside_a_whole_answer(request: web.Request, _: FakePod) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "100", "Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"pod": ')
    fakes.reset(request)
    return response


async def answer_503(request: web.Request, _: FakePod) -> web.StreamResponse:
    return web.json_response({"error": {"message": "draining"}}, status=503)


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (die_before_headers, "lost"),
        (die_after_headers, "lost"),
        (end_without_an_event, "lost"),
        (die_inside_a_whole_answer, "lost"),
        (answer_503, "unavailable"),
    ],
)
async def test_a_pod_lost_before_the_first_byte_is_replaced_by_another(
    tmp_path: Path, behaviour: fakes.Behaviour, reason: str
) -> None:
    async with routed(tmp_path) as bench:
        bench.pods[0].behaviour = behaviour
        async with bench.chat() as response:
            assert await response.json() == {"pod": "chat-1"}
            assert response.headers["x-pagoda-route"] == "pod=chat-1;reason=retry;tokens=0"
        assert bench.pods[0].bodies == bench.pods[1].bodies
        assert await bench.metric(f'pagoda_router_retries_total{{reason="{reason}"}}') == 1
        assert await bench.metric('pagoda_router_decisions_total{reason="retry"}') == 1


async def test_a_refusing_pod_is_replaced_and_gets_nothing_more(tmp_path: Path) -> None:
    async with routed(tmp_path) as bench:
        await bench.pods[0].stop_engine()
        for _ in range(4):
            async with bench.chat() as response:
                assert await response.json() == {"pod": "chat-1"}
        assert await bench.metric('pagoda_router_retries_total{reason="refused"}') <= 1


async def test_a_pod_is_found_again_when_it_is_ready(tmp_path: Path) -> None:
    async with routed(tmp_path, num_pods=1) as bench:
        pod = bench.pods[0]
        pod.ready_status = 503
        await until(lambda: not bench.router.fleet.ready())
        async with bench.chat() as response, bench.client.get(f"{bench.url}/ready") as ready:
            assert (response.status, ready.status) == (503, 503)
            assert response.headers["Retry-After"] == "1"
            error = (await response.json())["error"]
            assert error["code"] == "no_pod_ready"
            assert "chat-0: /ready answered 503" in error["message"]
        pod.ready_status = 200
        await until(lambda: bool(bench.router.fleet.ready()))
        async with bench.chat() as response:
            assert response.status == 200


async def test_only_one_other_pod_is_tried(tmp_path: Path) -> None:
    async with routed(tmp_path, num_pods=3) as bench:
        for pod in bench.pods:
            pod.behaviour = die_before_headers
        async with bench.chat() as response:
            assert response.status == 503
            assert (await response.json())["error"]["code"] == "pod_lost"
        assert [len(pod.bodies) for pod in bench.pods] == [1, 1, 0]


@pytest.mark.parametrize("end", [fakes.reset, fakes.close])
async def test_a_stream_begun_and_lost_ends_with_an_error_event(tmp_path: Path, end: object) -> None:
    async def die(request: web.Request, _: FakePod) -> web.StreamResponse:
        stream = await fakes.begin_stream(request)
        await stream.write(event(0) + b'data: {"ind')
        await asyncio.sleep(0.1)
        assert callable(end)
        end(request)
        return stream

    async with routed(tmp_path) as bench:
        bench.pods[0].behaviour = die
        async with bench.chat(**STREAM) as response:
            events = (await response.content.read()).split(b"\n\n")
        assert events[0] + b"\n\n" == event(0)
        assert json.loads(events[1].removeprefix(b"data: "))["error"]["code"] == "pod_lost"
        assert events[2:] == [b""]
        assert not bench.pods[1].bodies
        assert await bench.metric("pagoda_router_streams_broken_total") == 1


async def test_a_stream_that_ends_without_done_and_without_a_length_was_lost(tmp_path: Path) -> None:
    async def old_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_poll = (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET")
        kind = b"Content-Length: 0\r\n\r\n" if is_poll else b"Content-Type: text/event-stream\r\n\r\n" + event(0)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + kind)
        await writer.drain()
        writer.close()

    async with routed(tmp_path, num_pods=1) as bench, await asyncio.start_server(old_http, "127.0.0.1", 0) as server:
        bench.pods[0].engine_port = server.sockets[0].getsockname()[1]
        await bench.pods[0].stop_engine()
        bench.write_pods(bench.pods[0])
        await until(lambda: [m.pod.engine for m in bench.router.fleet.ready()] == [bench.pods[0].record["engine"]])
        async with bench.chat(**STREAM) as response:
            assert b'"code": "pod_lost"' in await response.content.read()


async def test_a_silent_pod_is_given_up_after_the_deadline(tmp_path: Path) -> None:
    async def hang(request: web.Request, pod: FakePod) -> web.StreamResponse:
        if b"begin" in pod.bodies[-1]:
            stream = await fakes.begin_stream(request)
            await stream.write(event(0))
        await asyncio.sleep(30)
        raise AssertionError

    async with routed(tmp_path, limits=Limits(deadlines=Deadlines(first_byte=0.3, idle=0.3))) as bench:
        for pod in bench.pods:
            pod.behaviour = hang
        async with bench.chat() as response:
            assert response.status == 504
            assert (await response.json())["error"]["code"] == "pod_silent"
        async with bench.chat("begin", **STREAM) as response:
            assert b'"code": "pod_silent"' in await response.content.read()
        await until(lambda: sum(pod.num_cancelled for pod in bench.pods) == 2)


async def test_a_pod_that_leaves_the_file_ends_its_streams_and_gets_no_new_request(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def slow(request: web.Request, pod: FakePod) -> web.StreamResponse:
        await go_on.wait()
        return await answer(request, pod)

    async with routed(tmp_path) as bench:
        leaving = bench.pods[0]
        leaving.behaviour = slow
        running = asyncio.create_task(fakes.post(bench.client, f"{bench.url}/v1/completions", b'{"stream": true}'))
        await until(lambda: bool(leaving.bodies))
        bench.write_pods(bench.pods[1])
        await until(lambda: bench.router.fleet.num_pods == 1)
        for _ in range(3):
            async with bench.chat() as response:
                assert await response.json() == {"pod": "chat-1"}
        go_on.set()
        assert (await running).endswith(b"data: [DONE]\n\n")
        assert await bench.metric('pagoda_router_outstanding_seconds{pod="chat-0"}') == 0
        async with bench.client.get(f"{bench.url}/metrics") as response:
            assert 'pod="chat-0"' not in await response.text()


async def test_a_request_that_waits_at_a_pod_that_hangs_goes_to_another_one(tmp_path: Path) -> None:
    async with routed(tmp_path) as bench:
        hanging, other = bench.pods
        hanging.behaviour = fakes.say_nothing
        waiting = asyncio.create_task(_chat(bench))
        await until(lambda: bool(hanging.bodies))
        hanging.is_silent = True
        assert await asyncio.wait_for(waiting, 10) == {"pod": other.name}
        assert await bench.metric('pagoda_router_retries_total{reason="hung"}') == 1
        assert hanging.num_cancelled == 1


async def test_a_request_stays_at_a_pod_that_hangs_while_there_is_no_other(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def slow(request: web.Request, pod: FakePod) -> web.StreamResponse:
        await go_on.wait()
        return await answer(request, pod)

    async with routed(tmp_path, num_pods=1) as bench:
        pod = bench.pods[0]
        pod.behaviour = slow
        waiting = asyncio.create_task(_chat(bench))
        await until(lambda: bool(pod.bodies))
        pod.is_silent = True
        await until(lambda: not bench.router.fleet.ready(), seconds=10)
        await asyncio.sleep(0.1)
        go_on.set()
        assert await waiting == {"pod": pod.name}


async def _chat(bench: fakes.Bench) -> object:
    async with bench.chat() as response:
        return await response.json()
