"""One socket to one memcached, used by one exchange at a time.

    open ──► begin ──► send / receive … ──► end ──► begin …
                 └── anything else: not clean, the owner closes it

A connection whose exchange did not end well is never used again: a late answer would be taken for another question's.

Bytes are read and written here and nowhere else, by the task that runs the exchange and never by a callback: once
that task has returned or was cancelled, nobody touches its memory any more.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence

from pagoda_sidecar.pool.errors import NodeGarbled, NodeLate, NodeLost, NodeRefused
from pagoda_sidecar.pool.items import value_limit
from pagoda_sidecar.pool.meta import GET_SETTINGS, ProtocolError, Response, ResponseParser, Sink
from pagoda_sidecar.pool.nodes import PoolNode
from pagoda_sidecar.pool.settings import PoolSettings

# Bytes moved before the event loop's other tasks get a turn: a peer on loopback is always ready.
_TURN_BYTES = 1 << 20
_MAX_SEND_BUFFERS = 64  # in one call; the kernel takes 1024


class Connection:
    """Made by `open`. Errors of the peer are raised as NodeFailed, after which `is_clean` is False."""

    def __init__(self, peer: socket.socket, settings: PoolSettings) -> None:
        self._socket = peer
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
    async def open(cls, node: PoolNode, settings: PoolSettings) -> "Connection":
        """Connect and learn the node's item limit; the connection is then known to lead to a memcached.

        Raises:
            NodeFailed: it cannot be reached, does not answer in time, or is no memcached.
        """
        try:
            async with asyncio.timeout(settings.connect_seconds):
                connection = cls(await _connect(node), settings)
                try:
                    await connection._learn_limit()
                except BaseException:
                    connection.close()
                    raise
                return connection
        except TimeoutError as error:
            raise NodeLate(f"{node.name}: no connection within {settings.connect_seconds} s") from error
        except (OSError, UnicodeError) as error:  # the latter for a host that no name server could be asked for
            raise NodeRefused(f"{node.name}: {error}") from error

    @property
    def is_clean(self) -> bool:
        """Whether no answer is owed."""
        return self._parser is None

    @property
    def is_stale(self) -> bool:
        """Whether an unused connection has ended or has something to say that nobody asked for."""
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        """Close the socket; fine twice."""
        if self._timer is not None:
            self._timer.cancel()
        self._stop_reading()
        self._socket.close()

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
                sent = self._socket.sendmsg(rest[:_MAX_SEND_BUFFERS])
            except BlockingIOError:
                await self._writable()
                continue
            except OSError as error:
                raise NodeLost(str(error)) from error
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
                received = self._socket.recvmsg_into(self._parser.buffers())[0]
            except BlockingIOError:
                await self._readable()
                continue
            except OSError as error:
                raise NodeLost(str(error)) from error
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

    async def _learn_limit(self) -> None:
        self.begin(0)
        await self.send([GET_SETTINGS])
        is_last = False
        while not is_last:
            for response in await self.receive():
                if is_last or response.code not in (b"STAT", b"END"):
                    raise NodeGarbled(f"{response.code!r} to a question for settings")
                if response.words[:1] == (b"item_size_max",) and response.words[-1].isdigit():
                    self.value_limit_bytes = value_limit(int(response.words[-1]))
                is_last = response.code == b"END"
        self.end()
        if self.value_limit_bytes <= 0:
            raise NodeGarbled("no item_size_max in its settings")

    async def _give_turn(self, num_bytes: int) -> None:
        self._turn_bytes += num_bytes
        if self._turn_bytes >= _TURN_BYTES:
            self._turn_bytes = 0
            await asyncio.sleep(0)

    async def _readable(self) -> None:
        if not self._is_reading:  # stays so between waits: telling the kernel each time costs more than a spare wake-up
            self._is_reading = True
            self._loop.add_reader(self._socket.fileno(), self._on_readable)
        await self._wait()

    async def _writable(self) -> None:
        self._stop_reading()  # answers that wait meanwhile must not look like room to send
        descriptor = self._socket.fileno()
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
            self._loop.remove_reader(self._socket.fileno())

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
