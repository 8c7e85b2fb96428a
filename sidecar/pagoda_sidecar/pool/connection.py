"""One socket to one memcached, used by one exchange at a time.

    open: connect ──► TLS ──► settings, logging in if they are refused
      └──► begin ──► send / receive … ──► end ──► begin …
                       └── anything else: not clean, the owner closes it

A connection whose exchange did not end well is never used again: a late answer would be taken for another question's.

Bytes are read and written here and nowhere else, by the task that runs the exchange and never by a callback: once
that task has returned or was cancelled, nobody touches its memory any more.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence

from pagoda_sidecar.pool import meta
from pagoda_sidecar.pool.access import Access, Credentials
from pagoda_sidecar.pool.errors import NodeDenied, NodeGarbled, NodeLate, NodeLost, NodeRefused, NodeUntrusted
from pagoda_sidecar.pool.items import value_limit
from pagoda_sidecar.pool.meta import ProtocolError, Response, ResponseParser, Sink
from pagoda_sidecar.pool.nodes import PoolNode
from pagoda_sidecar.pool.settings import PoolSettings
from pagoda_sidecar.pool.wire import PlainWire, TlsWire, Wire

# Bytes moved before the event loop's other tasks get a turn: a peer on loopback is always ready.
_TURN_BYTES = 1 << 18
_NOT_YET = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Connection:
    """Made by `open`. Errors of the peer are raised as NodeFailed, after which `is_clean` is False."""

    def __init__(self, wire: Wire, settings: PoolSettings) -> None:
        self._wire = wire
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._parser: ResponseParser | None = None
        self._deadline = self._began = 0.0
        self._first_answer: float | None = None
        self._turn_bytes = 0
        self._next_opaque = 0
        self._waiter: asyncio.Future[bool] | None = None
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_reading = False
        self.value_limit_bytes = 0

    @classmethod
    async def open(cls, node: PoolNode, settings: PoolSettings, access: Access) -> "Connection":
        """Connect, log in where that is asked for, and learn the item limit: it then leads to a memcached.

        Raises:
            NodeFailed: it cannot be reached, does not answer in time, or is no memcached that lets us in.
        """
        try:
            async with asyncio.timeout(settings.connect_seconds):
                connection = cls(_wire(await _connect(node), node, access), settings)
                try:
                    await connection._shake_hands()
                    await connection._introduce(access.credentials)
                except BaseException:
                    connection.close()
                    raise
                return connection
        except TimeoutError as error:
            raise NodeLate(f"{node.name}: no connection within {settings.connect_seconds} s") from error
        except (OSError, ValueError) as error:  # the latter for a host that no name server could be asked for
            raise NodeRefused(f"{node.name}: {error}") from error

    @property
    def is_clean(self) -> bool:
        """Whether no answer is owed."""
        return self._parser is None

    @property
    def is_stale(self) -> bool:
        """Whether an unused connection has ended or has something to say that nobody asked for."""
        return self._wire.is_stale

    def close(self) -> None:
        """Close the socket; fine twice."""
        if self._timer is not None:
            self._timer.cancel()
        self._stop_reading()
        self._wire.close()

    def opaques(self, count: int) -> range:
        """Return `count` tokens that this connection has never used before."""
        first = self._next_opaque
        self._next_opaque += count
        return range(first, self._next_opaque)

    def begin(self, num_bytes: int, sink_for: Callable[[Response], Sink] | None = None) -> None:
        """Start an exchange that moves about `num_bytes`; its deadline starts now."""
        assert self.is_clean, "the exchange before this one has not ended"
        self._parser = ResponseParser(sink_for or _refuse_value)
        self._began = self._loop.time()
        self._first_answer = None
        self._deadline = (
            self._began + self._settings.operation_seconds + num_bytes / self._settings.min_bytes_per_second
        )

    def end(self) -> tuple[float, float]:
        """End an exchange of which every answer was received; return (seconds to the first answer, to the last).

        Raises:
            NodeGarbled: there are bytes behind the last answer.
        """
        assert self._parser is not None, "no exchange has begun"
        if not self._parser.is_idle:
            raise NodeGarbled("bytes that nobody asked for")
        self._parser = None
        now = self._loop.time()
        return (self._first_answer or now) - self._began, now - self._began

    async def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Send `buffers` in order, without joining them.

        Raises:
            NodeLost, NodeLate: as they say.
        """
        rest = [memoryview(buffer) for buffer in buffers]
        while rest:
            try:
                sent = self._wire.send(rest)
            except _NOT_YET as error:
                await self._ready(error, to_send=True)
                continue
            except OSError as error:
                raise self._lost(error) from error
            _advance(rest, sent)
            await self._give_turn(sent)

    async def receive(self) -> list[Response]:
        """Return the next complete responses, at least one.

        Raises:
            NodeFailed: the connection ended, a deadline passed, or the bytes make no sense.
        """
        assert self._parser is not None, "no exchange has begun"
        while True:
            try:
                received = self._wire.receive(self._parser.buffers())
            except _NOT_YET as error:
                await self._ready(error, to_send=False)
                continue
            except OSError as error:
                raise self._lost(error) from error
            if not received:
                raise NodeLost("the node closed the connection")
            if self._first_answer is None:
                self._first_answer = self._loop.time()
            try:
                responses = self._parser.received(received)
            except ProtocolError as error:
                raise NodeGarbled(str(error)) from error
            await self._give_turn(received)
            if responses:
                return responses

    async def _shake_hands(self) -> None:
        self._deadline = self._loop.time() + self._settings.connect_seconds
        while True:
            try:
                return self._wire.handshake()
            except _NOT_YET as error:
                await self._ready(error, to_send=False)
            except OSError as error:
                raise self._lost(error) from error

    async def _introduce(self, credentials: Credentials | None) -> None:
        """Learn the node's item limit. Only a node that asks who we are is told."""
        if await self._learn_limit():
            return
        if credentials is None:
            raise NodeDenied("it asks for a user and a password, there are none")
        self.begin(0)
        await self.send([meta.log_in_command(credentials.username, credentials.password)])
        answers = await self.receive()
        self.end()
        if [answer.code for answer in answers] != [b"STORED"]:
            raise NodeDenied("it does not accept the user and the password")
        if not await self._learn_limit():
            raise NodeDenied("it accepted the user and the password, and asks again")

    async def _learn_limit(self) -> bool:
        """Ask for the node's settings; return whether it told them."""
        self.begin(0)
        await self.send([meta.GET_SETTINGS])
        is_last = is_denied = False
        while not is_last:
            for response in await self.receive():
                is_denied = response.code == b"CLIENT_ERROR" and response.words == (b"unauthenticated",)
                if is_last or not (is_denied or response.code in (b"STAT", b"END")):
                    raise NodeGarbled(f"{response.code!r} to a question for settings")
                if response.words[:1] == (b"item_size_max",) and response.words[-1].isdigit():
                    self.value_limit_bytes = value_limit(int(response.words[-1]))
                is_last = is_denied or response.code == b"END"
        self.end()
        if not is_denied and self.value_limit_bytes <= 0:
            raise NodeGarbled("no item_size_max in its settings")
        return not is_denied

    def _lost(self, error: OSError) -> NodeLost | NodeUntrusted:
        """Say what an error of the wire means; a peer may refuse our certificate as late as in its first answer."""
        if isinstance(error, ssl.SSLError) and not self.value_limit_bytes:
            return NodeUntrusted(str(error))
        return NodeLost(str(error))

    async def _give_turn(self, num_bytes: int) -> None:
        self._turn_bytes += num_bytes
        if self._turn_bytes >= _TURN_BYTES:
            self._turn_bytes = 0
            await asyncio.sleep(0)

    async def _ready(self, error: OSError, *, to_send: bool) -> None:
        """Wait for what `error` says is missing; a bare socket does not say which way."""
        if isinstance(error, ssl.SSLWantReadError) or (not to_send and not isinstance(error, ssl.SSLWantWriteError)):
            await self._readable()
        else:
            await self._writable()

    async def _readable(self) -> None:
        if not self._is_reading:  # stays so between waits: telling the kernel each time costs more than a spare wake-up
            self._is_reading = True
            self._loop.add_reader(self._wire.fileno(), self._on_readable)
        await self._wait()

    async def _writable(self) -> None:
        self._stop_reading()  # answers that wait meanwhile must not look like room to send
        descriptor = self._wire.fileno()
        self._loop.add_writer(descriptor, self._settle, True)
        try:
            await self._wait()
        finally:
            self._loop.remove_writer(descriptor)

    async def _wait(self) -> None:
        """Wait until the socket is ready, for as long as the node may be silent.

        asyncio handles ready sockets before due timers, and a woken waiter stays woken: a loop of ours that was held up
        for longer than the deadline does not blame the node for it.
        """
        self._waiter = self._loop.create_future()
        self._due = min(self._deadline, self._loop.time() + self._settings.operation_seconds)
        if self._timer is None or self._timer.when() > self._due:
            self._set_timer()
        try:
            if not await self._waiter:
                raise NodeLate("no answer within the deadline")
        finally:
            self._waiter = None

    def _on_readable(self) -> None:
        if self._waiter is None:
            self._stop_reading()
        else:
            self._settle(True)

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._wire.fileno())

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._due, self._on_timer)

    def _on_timer(self) -> None:
        """End the wait that is due. One timer serves many waits: each only moves `_due`."""
        self._timer = None
        if self._waiter is None:
            return
        if self._loop.time() < self._due:
            self._set_timer()
        else:
            self._settle(False)

    def _settle(self, is_ready: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(is_ready)


def _refuse_value(response: Response) -> Sink:
    raise ProtocolError(f"a value of {response.size} bytes that nobody asked for")


def _advance(buffers: list[memoryview], num_bytes: int) -> None:
    """Take `num_bytes` off the front of `buffers`."""
    while buffers and num_bytes >= len(buffers[0]):
        num_bytes -= len(buffers[0])
        del buffers[0]
    if num_bytes:
        buffers[0] = buffers[0][num_bytes:]


def _wire(peer: socket.socket, node: PoolNode, access: Access) -> Wire:
    if access.tls is None:
        return PlainWire(peer)
    try:
        return TlsWire(peer, access.tls, node.host)
    except BaseException:
        peer.close()
        raise


async def _connect(node: PoolNode) -> socket.socket:
    loop = asyncio.get_running_loop()
    try:
        # An address needs no resolver, hence no thread.
        found = socket.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await loop.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM)
    refusal: OSError = ConnectionError("the name has no address")
    for family, kind, protocol, _, address in found:
        peer = socket.socket(family, kind, protocol)
        try:
            peer.setblocking(False)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(peer, address)
        except OSError as error:
            peer.close()
            refusal = error
        except BaseException:
            peer.close()
            raise
        else:
            return peer
    raise refusal
