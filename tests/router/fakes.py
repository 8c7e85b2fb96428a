"""A pod to test against: an engine whose next answers are scripted and a sidecar whose hint stream the test writes.

Both are real servers on free loopback ports, so that refusals, resets and closed connections are real ones.
"""

import asyncio
import contextlib
import io
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from pagoda_protocol.digests import DIGEST_VERSION
from pagoda_router.arguments import Settings
from pagoda_router.proxy import Limits
from pagoda_router.server import Router, running
from tests.support.ports import free_port

MODEL = "tiny"
STREAM = {"stream": True}
KEY = bytes(range(32))
TEMPLATE = "ab" * 16
Behaviour = Callable[[web.Request, "FakePod"], Awaitable[web.StreamResponse]]


class FakePod:
    """One pod. `behaviour` answers completions; `lines` written with `say` go to every open hint stream."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.behaviour: Behaviour = answer
        self.host = "127.0.0.1"
        self.ready_status = 200
        self.is_silent = False  # nothing answers /ready
        self.bodies: list[bytes] = []
        self.headers: list[Any] = []
        self.num_cancelled = 0
        self.engine_port = self.sidecar_port = free_port()
        self.head: dict[str, Any] = {
            "type": "head",
            "digest_version": DIGEST_VERSION,
            "models": [MODEL],
            "template_digest": TEMPLATE,
            "block_tokens": 16,
            "epochs": {"device": "d1", "ram": "r1"},
        }
        self.snapshot: list[dict[str, Any]] = []
        self.num_streams = 0
        self._streams: dict[web.StreamResponse, int] = {}  # the sequence of its next line
        self._cut = asyncio.Event()
        self._engine: web.AppRunner | None = None
        self._sidecar: web.AppRunner | None = None

    @property
    def record(self) -> dict[str, str]:
        """The pod's entry in pods.json."""
        engine, sidecar = f"{self.host}:{self.engine_port}", f"127.0.0.1:{self.sidecar_port}"
        return {"name": self.name, "engine": engine, "sidecar": sidecar}

    async def start(self) -> None:
        await self.start_engine()
        await self.start_sidecar()

    async def start_engine(self, port: int = 0) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/v1/models", self._complete)
        app.router.add_get("/ready", self._ready)
        self._engine, self.engine_port = await _listen(app, port)

    async def start_sidecar(self, port: int = 0) -> None:
        app = web.Application()
        app.router.add_get("/v1/prefixes", self._prefixes)
        self._sidecar, self.sidecar_port = await _listen(app, port)

    async def stop_engine(self) -> None:
        if self._engine is not None:
            runner, self._engine = self._engine, None
            await runner.cleanup()

    async def stop(self) -> None:
        await self.stop_engine()
        await self.stop_sidecar()

    async def stop_sidecar(self) -> None:
        if self._sidecar is not None:
            runner, self._sidecar = self._sidecar, None
            await self.cut_streams()
            await runner.cleanup()

    async def say(self, **line: Any) -> None:
        """Write one line to every open hint stream, with the next sequence."""
        for stream in list(self._streams):
            await self._write(stream, line)

    async def cut_streams(self) -> None:
        """End every hint stream."""
        cut, self._cut = self._cut, asyncio.Event()
        cut.set()
        await asyncio.sleep(0)

    async def _write(self, stream: web.StreamResponse, line: dict[str, Any]) -> None:
        sequence = self._streams[stream]
        self._streams[stream] = sequence + 1
        await stream.write(json.dumps({"sequence": sequence, **line}).encode() + b"\n")

    async def _prefixes(self, request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        self._streams[stream] = 0
        self.num_streams += 1
        cut = self._cut
        try:
            for line in (self.head, *self.snapshot, {"type": "live"}):
                await self._write(stream, line)
            await cut.wait()
        finally:
            del self._streams[stream]
        return stream

    async def _ready(self, _: web.Request) -> web.Response:
        if self.is_silent:
            await asyncio.sleep(60)
        return web.Response(status=self.ready_status)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        self.headers.append(request.headers)
        try:
            return await self.behaviour(request, self)
        except (asyncio.CancelledError, OSError):
            self.num_cancelled += 1
            raise


async def answer(request: web.Request, pod: FakePod) -> web.StreamResponse:
    """Answer well: JSON, or a stream of three events if the body asks for one."""
    if b'"stream": true' not in pod.bodies[-1]:
        return web.json_response({"pod": pod.name})
    stream = await begin_stream(request)
    for index in range(3):
        await stream.write(event(index))
    await stream.write(b"data: [DONE]\n\n")
    return stream


async def begin_stream(request: web.Request) -> web.StreamResponse:
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await stream.prepare(request)
    return stream


async def hold(request: web.Request, _: FakePod) -> web.StreamResponse:
    """Begin a stream and never end it."""
    stream = await begin_stream(request)
    await stream.write(event(0))
    await asyncio.sleep(60)
    return stream


async def say_nothing(_: web.Request, __: FakePod) -> web.StreamResponse:
    """Answer nothing at all."""
    await asyncio.sleep(60)
    raise AssertionError


def event(index: int) -> bytes:
    return b"data: " + json.dumps({"index": index}).encode() + b"\n\n"


def reset(request: web.Request) -> None:
    """End the connection with RST, as the kernel does for a killed process with unread bytes."""
    assert request.transport is not None
    connection = request.transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.transport.abort()


def close(request: web.Request) -> None:
    """End the connection with FIN in the middle of whatever was being said."""
    assert request.transport is not None
    request.transport.close()


async def _listen(app: web.Application, port: int) -> tuple[web.AppRunner, int]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
    return runner, runner.addresses[0][1]


class Bench:
    """A router over fake pods, and a client of it."""

    def __init__(self, router: Router, pods: list[FakePod], client: aiohttp.ClientSession, folder: Path) -> None:
        self.router = router
        self.pods = pods
        self.client = client
        self.url = f"http://127.0.0.1:{router.port}"
        self._folder = folder

    def write_pods(self, *pods: FakePod) -> None:
        write_pods(self._folder, pods)

    def chat(self, text: str = "hello", **more: Any) -> Any:
        """Return a request as a context manager."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], **more}
        return self.client.post(f"{self.url}/v1/chat/completions", data=io.BytesIO(json.dumps(body).encode()))

    async def metric(self, name: str) -> float:
        """Return the value of the first series that begins with `name`."""
        async with self.client.get(f"{self.url}/metrics") as response:
            text = await response.text()
        return next((float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name)), 0.0)


@contextlib.asynccontextmanager
async def routed(
    folder: Path, num_pods: int = 2, policy: str = "RoundRobin", limits: Limits | None = None, **settings: Any
) -> AsyncIterator[Bench]:
    """Run a router over fresh fake pods and wait until it finds them ready and has their hints."""
    pods = [FakePod(f"chat-{index}") for index in range(num_pods)]
    async with contextlib.AsyncExitStack() as stack:
        for pod in pods:
            stack.push_async_callback(pod.stop)
            await pod.start()
        folder.joinpath("digest").write_bytes(KEY)
        write_pods(folder, pods)
        values = make_settings(folder, policy=policy, **settings)
        client = await stack.enter_async_context(aiohttp.ClientSession())
        router = await stack.enter_async_context(running(values, limits))
        await until(lambda: len(router.fleet.ready()) == num_pods)
        await until(lambda: all(member.hints.head is not None for member in router.fleet.ready()))
        yield Bench(router, pods, client, folder)
        router.book.check_integrity()


async def post(client: aiohttp.ClientSession, url: str, body: bytes) -> bytes:
    async with client.post(url, data=body) as response:
        return await response.read()


def make_settings(folder: Path, **changes: Any) -> Settings:
    values: dict[str, Any] = {
        "name": "router", "host": "127.0.0.1", "port": 0, "model_name": MODEL, "secret_dir": folder,
        "settings_dir": folder, "tenants_dir": None, "pod_selector": None, "namespace": None, "policy": "RoundRobin",
        "block_tokens": 16, "drain_seconds": 0.2,
    }  # fmt: skip
    return Settings(**{**values, **changes})


def write_pods(folder: Path, pods: Any) -> None:
    text = json.dumps({"pods": [pod.record for pod in pods]})
    folder.joinpath("pods.json.new").write_text(text)
    folder.joinpath("pods.json.new").replace(folder / "pods.json")


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait until `condition` holds; fail after `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for is seen from outside, it sets no event
            await asyncio.sleep(0.01)
