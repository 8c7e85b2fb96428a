"""The lines of a watch, from a real HTTP server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from pagoda_operator.kube import lines as module
from pagoda_operator.kube.errors import FailedError, ForbiddenError, GoneError, UnreachableError
from pagoda_operator.kube.lines import KubeLines
from pagoda_runtime.web import serving

Door = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def reading(door: Door) -> AsyncIterator[KubeLines]:
    app = web.Application()
    app.router.add_get("/api/v1/pods", door)
    async with serving(app, "127.0.0.1", 0, 0.0) as port:
        lines = KubeLines(Configuration(host=f"http://127.0.0.1:{port}"))
        try:
            yield lines
        finally:
            await lines.close()


def saying(*parts: bytes, pause: float = 0.0, cut: bool = False) -> Door:
    async def door(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for part in parts:
            await response.write(part)
            await asyncio.sleep(pause)
        if cut:
            assert request.transport is not None
            request.transport.abort()
        return response

    return door


async def read(lines: KubeLines, silence_seconds: float = 5.0) -> list[bytes]:
    return [line async for line in lines.read("/api/v1/pods", {"watch": "true"}, silence_seconds)]


async def test_lines_come_whole_however_they_were_cut() -> None:
    async with reading(saying(b"one\ntw", b"o\n", b"\nthree\nrest", pause=0.01)) as lines:
        assert await read(lines) == [b"one", b"two", b"", b"three"]


async def test_the_query_is_sent() -> None:
    async def door(request: web.Request) -> web.StreamResponse:
        return web.Response(text=f"{request.query_string}\n")

    async with reading(door) as lines:
        assert await read(lines) == [b"watch=true"]


async def test_an_answer_that_falls_silent_is_given_up() -> None:
    async with reading(saying(b"one\n", b"two\n", pause=1.0)) as lines:
        with pytest.raises(UnreachableError, match="silent"):
            await read(lines, silence_seconds=0.2)


async def test_a_connection_that_breaks_is_unreachable() -> None:
    async with reading(saying(b"one\n", cut=True)) as lines:
        with pytest.raises(UnreachableError):
            await read(lines)


async def test_a_line_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_LINE_BYTES", 100)
    async with reading(saying(b"x" * 1000)) as lines:
        with pytest.raises(UnreachableError, match="more than 100 bytes"):
            await read(lines)


@pytest.mark.parametrize(("status", "error"), [(403, ForbiddenError), (410, GoneError), (500, FailedError)])
async def test_a_refusal_is_the_error_of_its_status(status: int, error: type[Exception]) -> None:
    async def door(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status)

    async with reading(door) as lines:
        with pytest.raises(error):
            await read(lines)
