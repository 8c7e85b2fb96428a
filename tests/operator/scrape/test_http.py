"""The hand-written GET against servers that do as they please."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from pagoda_operator.scrape.http import MAX_HEAD_BYTES, HttpError, get
from pagoda_runtime.web import serving

Conversation = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def server(conversation: Conversation) -> AsyncIterator[int]:
    open_now: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_now[asyncio.current_task()] = writer
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await conversation(reader, writer)

    listening = await asyncio.start_server(converse, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for task, writer in open_now.items():
            writer.transport.abort()
            if task is not None:
                task.cancel()
        await asyncio.gather(*(task for task in open_now if task is not None), return_exceptions=True)


def saying(*parts: bytes, pause: float = 0.0, reset: bool = False) -> Conversation:
    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause)
        if reset:
            connection: socket.socket = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    return converse


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("parts", "status", "body"),
    [
        ([HEAD + b"Content-Length: 4\r\n\r\nbody"], 200, b"body"),
        ([HEAD + b"content-length:4\r\n\r\n", b"bo", b"dy"], 200, b"body"),
        ([HEAD + b"Content-Length: 4\r\n\r\nbodyMORE"], 200, b"body"),
        ([HEAD + b"\r\n", b"until ", b"the end"], 200, b"until the end"),
        ([HEAD[:10], HEAD[10:] + b"\r", b"\nx"], 200, b"x"),
        ([b"HTTP/1.0 503 Service Unavailable\r\n\r\n{}"], 503, b"{}"),
        ([HEAD + b"Content-Length: 0\r\n\r\n"], 200, b""),
        ([HEAD + b"\r\n"], 200, b""),
    ],
)  # fmt: skip
async def test_an_answer_is_read_to_its_end_however_it_is_cut(parts: list[bytes], status: int, body: bytes) -> None:
    async with server(saying(*parts, pause=0.01)) as port:
        assert await get("127.0.0.1", port, "/", 100) == (status, body)


async def test_an_answer_that_says_its_length_is_not_waited_for_beyond_it() -> None:
    async with server(saying(HEAD + b"Content-Length: 4\r\n\r\nbody", pause=30.0)) as port, asyncio.timeout(5.0):
        assert await get("127.0.0.1", port, "/", 100) == (200, b"body")


@pytest.mark.parametrize(
    "parts",
    [
        [b"SSH-2.0-OpenSSH_9\r\n\r\n"], [b"HTTP/2 200\r\n\r\n"], [b"HTTP/1.1 abc\r\n\r\n"], [b"\r\n\r\n"],
        [HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"],
        [HEAD + b"Content-Length: 101\r\n\r\n"], [HEAD + b"Content-Length: -1\r\n\r\n"],
        [HEAD + b"Content-Length: 99999999999999999999\r\n\r\n"],
        [HEAD + b"\r\n" + b"x" * 101], [b"x" * (MAX_HEAD_BYTES + 1)],
    ],
)  # fmt: skip
async def test_what_is_no_answer_or_too_long_is_refused(parts: list[bytes]) -> None:
    async with server(saying(*parts, pause=0.01)) as port:
        with pytest.raises(HttpError):
            await get("127.0.0.1", port, "/", 100)


@pytest.mark.parametrize(
    "conversation",
    [saying(), saying(HEAD), saying(HEAD + b"Content-Length: 4\r\n\r\nbo"), saying(HEAD + b"\r\nbo", reset=True)],
)
async def test_a_connection_that_breaks_off_is_no_answer(conversation: Conversation) -> None:
    async with server(conversation) as port:
        with pytest.raises(OSError):
            await get("127.0.0.1", port, "/", 100)


async def test_nobody_there_is_an_os_error() -> None:
    async with server(saying()) as port:
        pass
    with pytest.raises(OSError):
        await get("127.0.0.1", port, "/", 100)


async def test_a_caller_that_gives_up_leaves_no_connection_open() -> None:
    ended = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while await reader.read(100):
                pass
        ended.set()
        writer.close()

    async with server(silent) as port:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await get("127.0.0.1", port, "/", 100)
        async with asyncio.timeout(5.0):
            await ended.wait()


async def test_a_server_of_ours_understands_what_is_asked() -> None:
    async def hello(request: web.Request) -> web.Response:
        return web.json_response({"host": request.host, "path": request.path})

    app = web.Application()
    app.router.add_get("/v1/summary", hello)
    async with serving(app, "127.0.0.1", 0) as port:
        status, body = await get("127.0.0.1", port, "/v1/summary", 1000)
    assert status == 200
    assert body == b'{"host": "127.0.0.1:%d", "path": "/v1/summary"}' % port
