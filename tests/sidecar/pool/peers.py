"""Peers that misbehave in ways a real memcached cannot be made to: a slow road to one, and liars."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

SETTINGS = b"STAT maxbytes 67108864\r\nSTAT item_size_max 1048576\r\nEND\r\n"

_Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def _serving(handle: _Handler) -> AsyncIterator[str]:
    """Serve `handle` on a free loopback port; yield its address. Every connection ends with the context."""
    tasks: set[asyncio.Task[None]] = set()

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await handle(reader, writer)
        finally:
            tasks.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(run, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


@contextlib.asynccontextmanager
async def slow_road(port: int, bytes_per_second: float, after_bytes: int = 0) -> AsyncIterator[str]:
    """Forward to `port`, answers no faster than `bytes_per_second` once `after_bytes` went through."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
        asking = asyncio.create_task(_pump(reader, there_writer, 0))
        try:
            await _pump(there_reader, writer, 1 / bytes_per_second, after_bytes)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            there_writer.transport.abort()

    async with _serving(handle) as address:
        yield address


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds_per_byte: float, free_bytes: int = 0
) -> None:
    while data := await reader.read(8192):
        free_bytes -= len(data)
        if free_bytes < 0:
            await asyncio.sleep(len(data) * seconds_per_byte)
        writer.write(data)
        await writer.drain()


@contextlib.asynccontextmanager
async def liar(answer: Callable[[bytes], bytes]) -> AsyncIterator[str]:
    """Answer `stats settings` well and every other line with `answer(line)`."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(SETTINGS if line == b"stats settings\r\n" else answer(line))
            await writer.drain()

    async with _serving(handle) as address:
        yield address


@contextlib.asynccontextmanager
async def speaking(greeting: bytes) -> AsyncIterator[str]:
    """Say `greeting` to whoever connects, and nothing else."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await reader.read()

    async with _serving(handle) as address:
        yield address
