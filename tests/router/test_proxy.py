"""The proxy between clients and pods that answer: what passes, what is refused, who leaves."""

import asyncio
import contextlib
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from pagoda_router import relay
from pagoda_router.proxy import Limits
from pagoda_router.upstream import Deadlines
from tests.router import fakes
from tests.router.fakes import STREAM, FakePod, event, routed, until


async def test_a_body_and_an_answer_pass_unchanged_with_the_route_and_a_request_id(tmp_path: Path) -> None:
    async with routed(tmp_path, num_pods=1) as bench:
        raw = b'{ "model":"tiny",\n "messages": [{"role":"user","content":"h\\u00e9"}] , "unknown": 1e400}'
        headers = {"Authorization": "Bearer k", "Connection": "X-Private", "X-Private": "1", "X-Kept": "2", "TE": "x"}
        async with bench.client.post(f"{bench.url}/v1/completions", data=raw, headers=headers) as response:
            assert response.status == 200
            assert await response.json() == {"pod": "chat-0"}
            assert response.headers["x-pagoda-route"] == "pod=chat-0;reason=only_pod;tokens=0"
            identity = response.headers["x-request-id"]
        got = bench.pods[0].headers[0]
        assert bench.pods[0].bodies == [raw]
        assert got["X-Request-Id"] == identity
        assert len(identity) == 32
        assert got["Authorization"] == "Bearer k"
        assert got["X-Kept"] == "2"
        assert got["Content-Length"] == str(len(raw))
        assert "X-Private" not in got
        assert "TE" not in got


async def test_a_given_request_id_is_kept(tmp_path: Path) -> None:
    async with routed(tmp_path, num_pods=1) as bench:
        async with bench.client.get(f"{bench.url}/v1/models", headers={"x-request-id": "mine"}) as response:
            assert response.headers["x-request-id"] == "mine"
        assert bench.pods[0].headers[0]["x-request-id"] == "mine"


async def test_round_robin_takes_each_pod_in_turn(tmp_path: Path) -> None:
    async with routed(tmp_path, num_pods=3) as bench:
        names = []
        for _ in range(6):
            async with bench.chat() as response:
                names.append((await response.json())["pod"])
        assert names == ["chat-0", "chat-1", "chat-2"] * 2


async def test_a_stream_passes_unchanged_and_as_it_comes(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def slow(request: web.Request, _: FakePod) -> web.StreamResponse:
        stream = await fakes.begin_stream(request)
        await stream.write(event(0))
        await go_on.wait()
        await stream.write(event(1)[:5])
        await stream.write(event(1)[5:] + b"data: [DONE]\n\n")
        return stream

    async with routed(tmp_path, num_pods=1) as bench:
        bench.pods[0].behaviour = slow
        async with bench.chat(**STREAM) as response:
            assert await response.content.readany() == event(0)
            assert bench.router.book.num_outstanding(bench.router.fleet.ready()[0].pod) == 1
            go_on.set()
            assert await response.content.read() == event(1) + b"data: [DONE]\n\n"
            assert response.headers["Content-Type"] == "text/event-stream"
        assert await bench.metric("pagoda_router_outstanding_seconds{") == 0


async def test_a_stream_is_whole_at_done_and_its_client_may_leave_there(tmp_path: Path) -> None:
    async def linger(request: web.Request, _: FakePod) -> web.StreamResponse:
        stream = await fakes.begin_stream(request)
        await stream.write(event(0) + b"data: [DONE]\n\n")
        await asyncio.sleep(60)
        return stream

    async with routed(tmp_path, num_pods=1) as bench:
        bench.pods[0].behaviour = linger
        async with bench.chat(**STREAM) as response:
            assert await response.content.readuntil(b"[DONE]\n\n") == event(0) + b"data: [DONE]\n\n"
            response.close()
        await until(lambda: bench.pods[0].num_cancelled == 1)
        assert await bench.metric('pagoda_router_requests_total{code="200"}') == 1
        assert await bench.metric('pagoda_router_requests_total{code="499"}') == 0


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500])
async def test_an_answer_that_is_an_error_is_passed_on_and_not_retried(tmp_path: Path, status: int) -> None:
    async def refuse(_: web.Request, __: FakePod) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=status)

    async with routed(tmp_path) as bench:
        bench.pods[0].behaviour = refuse
        async with bench.chat(**STREAM) as response:
            assert response.status == status
            assert await response.json() == {"error": {"message": "no"}}
        assert not bench.pods[1].bodies


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_client_that_leaves_ends_the_work_within_a_second(tmp_path: Path, has_begun: bool) -> None:
    async def endless(request: web.Request, _: FakePod) -> web.StreamResponse:
        stream = await fakes.begin_stream(request)
        while True:
            if has_begun:
                await stream.write(event(0))
            await asyncio.sleep(0.05)

    async with routed(tmp_path, num_pods=1) as bench:
        pod = bench.pods[0]
        pod.behaviour = endless
        client = asyncio.create_task(_read(bench, **STREAM))
        await until(lambda: bool(pod.bodies))
        await asyncio.sleep(0.1)
        client.cancel()
        await until(lambda: pod.num_cancelled == 1, seconds=1.0)
        await until(lambda: not bench.router.book.outstanding_seconds(bench.router.fleet.ready()[0].pod), seconds=1.0)
        assert await bench.metric('pagoda_router_requests_total{code="499"}') == 1


async def test_a_client_that_does_not_read_slows_the_pod_and_is_given_up(tmp_path: Path) -> None:
    sent = 0

    async def flood(request: web.Request, _: FakePod) -> web.StreamResponse:
        nonlocal sent
        stream = await fakes.begin_stream(request)
        while True:
            await stream.write(b"data: " + b"x" * 65536 + b"\n\n")
            sent += 65536

    async with routed(tmp_path, num_pods=1, limits=Limits(deadlines=Deadlines(idle=0.5))) as bench:
        bench.pods[0].behaviour = flood
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.router.port, limit=1024)
        body = b'{"stream": true}'
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await until(lambda: bench.pods[0].num_cancelled == 1)
        assert sent < 64 << 20  # a few socket buffers, then nothing
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(2.0):
                while await reader.read(1 << 20):
                    pass
        writer.close()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"{", "not JSON"),
        (b"", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a":' + b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
async def test_a_malformed_body_is_refused_in_openai_s_shape(tmp_path: Path, raw: bytes, message: str) -> None:
    async with routed(tmp_path, num_pods=1) as bench:
        async with bench.client.post(f"{bench.url}/v1/chat/completions", data=raw) as response:
            assert response.status == 400
            error = (await response.json())["error"]
        assert message in error["message"]
        assert error["type"] == "invalid_request_error"
        assert not bench.pods[0].bodies


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_over_the_limit_is_refused(tmp_path: Path, is_chunked: bool) -> None:
    async def pieces() -> object:
        for _ in range(40):
            yield b"x" * 1000

    async with routed(tmp_path, num_pods=1, limits=Limits(max_body_bytes=20_000)) as bench:
        data = pieces() if is_chunked else b"x" * 40_000
        async with bench.client.post(f"{bench.url}/v1/completions", data=data) as response:
            assert response.status == 413
            assert (await response.json())["error"]["code"] == "request_too_large"


async def test_a_large_body_passes_and_is_digested_off_the_loop(tmp_path: Path) -> None:
    async with routed(tmp_path, num_pods=1) as bench:
        async with bench.chat("x" * (3 << 20)) as response:
            assert response.status == 200
        assert len(bench.pods[0].bodies[0]) > 3 << 20


async def test_unknown_paths_and_methods_are_answered_in_openai_s_shape(tmp_path: Path) -> None:
    async with routed(tmp_path, num_pods=1) as bench:
        async with bench.client.post(f"{bench.url}/v1/embeddings", data=b"{}") as response:
            assert response.status == 404
            assert "error" in await response.json()
        async with bench.client.get(f"{bench.url}/v1/completions") as response:
            assert response.status == 405
            assert "error" in await response.json()
            assert response.headers["Allow"] == "POST"


async def test_without_pods_health_is_fine_and_ready_is_not(tmp_path: Path) -> None:
    async with routed(tmp_path, num_pods=0) as bench:
        async with bench.client.get(f"{bench.url}/health") as health, bench.client.get(f"{bench.url}/ready") as ready:
            assert (health.status, ready.status) == (200, 503)
            assert "no pods are known" in (await ready.json())["reason"]
        async with bench.chat() as response:
            assert response.status == 503


async def _read(bench: fakes.Bench, **more: object) -> None:
    async with bench.chat(**more) as response:
        await response.read()


async def test_cookies_of_a_pod_are_not_kept_for_others(tmp_path: Path) -> None:
    async def bake(_: web.Request, __: FakePod) -> web.StreamResponse:
        return web.json_response({}, headers={"Set-Cookie": "a=b"})

    async with routed(tmp_path, num_pods=1) as bench:
        bench.pods[0].behaviour = bake
        bench.pods[0].host = "localhost"  # of an address no cookie is ever kept
        bench.write_pods(bench.pods[0])
        await until(lambda: [m.pod.engine[:9] for m in bench.router.fleet.ready()] == ["localhost"])
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as client:
            for _ in range(2):
                await fakes.post(client, f"{bench.url}/v1/completions", b"{}")
        assert "Cookie" not in bench.pods[0].headers[1]


async def test_an_early_refusal_of_a_large_body_reaches_the_client(tmp_path: Path) -> None:
    async def refuse_unread(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_poll = (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET")
        status = b"200 OK" if is_poll else b"413 Content Too Large"
        writer.write(b"HTTP/1.1 %s\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}" % status)
        await writer.drain()
        if not is_poll:
            while await reader.read(65536):  # what a polite server does before it closes
                pass
        writer.close()

    async with (
        routed(tmp_path, num_pods=1) as bench,
        await asyncio.start_server(refuse_unread, "127.0.0.1", 0) as server,
    ):
        bench.pods[0].engine_port = server.sockets[0].getsockname()[1]
        bench.write_pods(bench.pods[0])
        await until(lambda: [m.pod.engine for m in bench.router.fleet.ready()] == [bench.pods[0].record["engine"]])
        async with bench.chat("x" * (3 << 20)) as response:
            assert response.status == 413


async def test_one_model_is_asked_of_any_pod(tmp_path: Path) -> None:
    async with routed(tmp_path, policy="CacheAware") as bench, bench.client.get(f"{bench.url}/v1/models") as response:
        assert "reason=any_pod" in response.headers["x-pagoda-route"]
        async with bench.client.get(f"{bench.url}/v1/models/org/name") as missing:
            assert missing.status == 404  # the engine's answer
            assert "x-pagoda-route" in missing.headers


async def test_a_stream_that_ends_inside_an_event_on_purpose_is_passed_whole(tmp_path: Path) -> None:
    async def odd(request: web.Request, _: FakePod) -> web.StreamResponse:
        stream = await fakes.begin_stream(request)
        await stream.write(event(0) + b": no blank line")
        return stream

    async with routed(tmp_path, num_pods=1) as bench:
        bench.pods[0].behaviour = odd
        async with bench.chat(**STREAM) as response:
            assert await response.read() == event(0) + b": no blank line"


@pytest.mark.parametrize("is_cut", [False, True])
async def test_an_answer_too_large_to_hold_is_passed_on_and_cut_if_it_was(
    tmp_path: Path, is_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "_MAX_WHOLE_BYTES", 1000)

    async def large(request: web.Request, _: FakePod) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Type": "application/json"})
        await stream.prepare(request)
        await stream.write(b"x" * 3000)
        await asyncio.sleep(0.1)
        if is_cut:
            fakes.reset(request)
        return stream

    async with routed(tmp_path) as bench:
        bench.pods[0].behaviour = large
        async with bench.chat() as response:
            if is_cut:
                with pytest.raises(aiohttp.ClientPayloadError):
                    await response.read()
            else:
                assert await response.read() == b"x" * 3000
        assert not bench.pods[1].bodies
