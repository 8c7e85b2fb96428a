"""A TCP proxy in a thread of its own, whose faults are switched from any other thread.

    with running_proxy("127.0.0.1", memcached.port) as proxy:
        proxy.port                        connect here
        proxy.throttle(10e6)              bytes per second in each direction, all connections together
        proxy.delay(0.02)                 every answer comes that much later, throughput unchanged
        proxy.black_hole(True)            connections are accepted, nothing moves; False: what waits goes on
        proxy.refuse(True)                new connections end at once
        proxy.cut()                       every connection ends now, with a reset
        proxy.swallow(100)                the next 100 bytes of answers are lost
        proxy.arm(Fault("fetch", "flip", "xxh3", 5))      the next record read loses a bit (needs speaks_meta=True)
        proxy.counts                      what was really done, by name

Without `speaks_meta` bytes pass as they come, and fast; with it each frame is looked at (`rewriting.Link`).
"""

import asyncio
import collections
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

from tests.support.faults.mutations import Fault
from tests.support.faults.rewriting import After, Cut, Hang, Rewriter

Rewrite = Callable[[bytes], tuple[bytes, After]]

START_SECONDS = 10.0
_CHUNK_BYTES = 1 << 18
_SMOOTH_SECONDS = 0.01  # a throttled direction moves pieces of about this length
_CREDIT_SECONDS = 0.02  # what a late wake-up may catch up
_QUEUE_CHUNKS = 64
_RECEIVE_BYTES = 1 << 18  # a small window, so that a slow direction is felt by who sends into it
_RESET = struct.pack("ii", 1, 0)


class Pace:
    """One direction's bandwidth, shared by all connections."""

    def __init__(self) -> None:
        self.bytes_per_second: float | None = None
        self._free_at = 0.0

    def chunk_bytes(self) -> int:
        """The longest piece to move at once."""
        rate = self.bytes_per_second
        return _CHUNK_BYTES if rate is None else max(1024, min(_CHUNK_BYTES, int(rate * _SMOOTH_SECONDS)))

    async def take(self, num_bytes: int) -> None:
        """Wait until `num_bytes` may pass."""
        rate = self.bytes_per_second
        if rate is None:
            return
        now = asyncio.get_running_loop().time()
        self._free_at = max(now - _CREDIT_SECONDS, self._free_at) + num_bytes / rate
        await asyncio.sleep(self._free_at - now)


class Proxy:
    """Made by `running_proxy`. Every method may be called from any thread and returns at once."""

    def __init__(self, host: str, port: int, speaks_meta: bool) -> None:
        self.port = 0
        self.counts: collections.Counter[str] = collections.Counter()
        self._target = (host, port)
        self._rewriter = Rewriter(self.counts) if speaks_meta else None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._is_started = threading.Event()
        self._links: set[asyncio.Task[None]] = set()
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._refuses = False
        self._delay_seconds = 0.0
        self._swallow_bytes = 0
        self.to_server, self.to_client = Pace(), Pace()
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)

    # -- faults ---------------------------------------------------------------------------------------------------

    def throttle(self, bytes_per_second: float | None) -> None:
        """Limit each direction; None lifts the limit."""
        self.to_server.bytes_per_second = self.to_client.bytes_per_second = bytes_per_second
        if bytes_per_second is not None:
            self.counts["throttle"] += 1

    def delay(self, seconds: float) -> None:
        """Let every byte of an answer come `seconds` later."""
        self._delay_seconds = seconds
        if seconds:
            self.counts["delay"] += 1

    def black_hole(self, is_on: bool) -> None:
        """Move nothing while on."""
        if is_on:
            self.counts["black_hole"] += 1
        self._call(self._is_open.clear if is_on else self._is_open.set)

    def refuse(self, is_on: bool) -> None:
        """End new connections at once while on."""
        self._refuses = is_on

    def cut(self) -> None:
        """End every connection with a reset."""
        self._call(self._cut)

    def swallow(self, num_bytes: int) -> None:
        """Lose the next bytes of answers."""
        self._call(self._swallow_next, num_bytes)

    def retarget(self, host: str, port: int) -> None:
        """Send new connections to another server."""
        self._target = (host, port)

    def arm(self, *faults: Fault) -> None:
        """Do each of `faults` once, in this order, at the next question or answer that it fits."""
        assert self._rewriter is not None, "the proxy does not look at frames: speaks_meta=True"
        self._rewriter.arm(faults)

    def disarm(self) -> None:
        """Forget what is armed."""
        assert self._rewriter is not None, "the proxy does not look at frames: speaks_meta=True"
        self._rewriter.disarm()

    @property
    def num_armed(self) -> int:
        """Faults that are armed and were not done yet."""
        return 0 if self._rewriter is None else self._rewriter.num_armed

    # -- thread ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread and wait for the port."""
        self._thread.start()
        if not self._is_started.wait(START_SECONDS):
            raise TimeoutError("the proxy did not start")

    def end(self) -> None:
        """End connections and thread."""
        self._call(self._stop.set)
        self._thread.join(START_SECONDS)
        assert not self._thread.is_alive(), "the proxy did not end"

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        self._loop.call_soon_threadsafe(function, *arguments)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=256) as server:
            server.setblocking(False)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
            self.port = server.getsockname()[1]
            self._is_started.set()
            # A callback, not a task that awaits: one cancelled in the very moment of an accept loses the connection.
            self._loop.add_reader(server, self._accept, server)
            await self._stop.wait()
            self._loop.remove_reader(server)
            for link in self._links:
                link.cancel()
            await asyncio.gather(*self._links, return_exceptions=True)

    def _accept(self, server: socket.socket) -> None:
        try:
            client, _ = server.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        if self._refuses:
            self.counts["refuse"] += 1
            _reset(client)
            return

        def ended(task: asyncio.Task[None]) -> None:
            self._links.discard(task)
            client.close()  # a link that was cancelled before its first step closed nothing

        task = self._loop.create_task(self._link(client))
        self._links.add(task)
        task.add_done_callback(ended)

    async def _link(self, client: socket.socket) -> None:
        """Carry one connection until either side, a fault or the end of the proxy ends it."""
        server = socket.socket()
        sockets = (client, server)
        is_ordinary = False
        for end in sockets:
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await self._is_open.wait()
            await self._loop.sock_connect(server, self._target)
            link = self._rewriter.link() if self._rewriter is not None else None
            pumps = [
                asyncio.create_task(self._pump(client, server, self.to_server, link.question if link else None, False)),
                asyncio.create_task(self._pump(server, client, self.to_client, link.answer if link else None, True)),
            ]
            try:
                ended, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                is_ordinary = all(pump.result() for pump in ended)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass
        finally:
            for end in sockets:
                end.close() if is_ordinary else _reset(end)

    async def _pump(
        self, source: socket.socket, target: socket.socket, pace: Pace, rewrite: Rewrite | None, is_answer: bool
    ) -> bool:
        """Move bytes one way until the source ends or a fault says so; return whether it was no fault."""
        after = None
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUE_CHUNKS)
        writer = asyncio.create_task(self._deliver(waiting, target))
        try:
            while not writer.done():
                data = await self._loop.sock_recv(source, pace.chunk_bytes())
                if not data:
                    break
                await self._is_open.wait()
                out, after = (data, None) if rewrite is None else rewrite(data)
                if is_answer:
                    out = self._lose(out)
                await pace.take(len(out))
                due = self._loop.time() + self._delay_seconds if is_answer and self._delay_seconds else 0.0
                if out:
                    await waiting.put((due, out))
                if after is Hang:
                    await asyncio.Event().wait()  # until the peer's deadline ends the connection
                if after is Cut:
                    break
            await waiting.put((0.0, b""))
            await writer
        except OSError:
            return False
        finally:
            writer.cancel()
        return after is None

    async def _deliver(self, waiting: "asyncio.Queue[tuple[float, bytes]]", target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = await waiting.get()
                if not data:
                    return
                if due:
                    await asyncio.sleep(due - self._loop.time())
                await self._is_open.wait()
                await self._loop.sock_sendall(target, data)

    def _lose(self, data: bytes) -> bytes:
        lost = min(self._swallow_bytes, len(data))
        self._swallow_bytes -= lost
        return data[lost:]

    def _swallow_next(self, num_bytes: int) -> None:
        self.counts["swallow"] += 1
        self._swallow_bytes += num_bytes

    def _cut(self) -> None:
        self.counts["cut"] += 1
        for link in self._links:
            link.cancel()


def _reset(end: socket.socket) -> None:
    """Close with a reset, which also frees what waits to be sent."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    end.close()


@contextlib.contextmanager
def running_proxy(host: str, port: int, speaks_meta: bool = False) -> Iterator[Proxy]:
    """Run a proxy to `host:port` on a free loopback port while the context is open."""
    proxy = Proxy(host, port, speaks_meta)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.end()
