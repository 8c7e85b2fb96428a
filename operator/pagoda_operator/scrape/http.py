"""A GET of a small JSON document from a pod: one connection, one answer, and never more than asked for.

Written by hand because it is the operator's most frequent call: with a thousand pods, forty a second. A client library
takes several times the CPU for what is not used here (redirects, cookies, encodings, connections that are kept).
HTTP/1.0 is spoken so that no server answers in chunks; the answer ends where it says, or with the connection.
"""

import asyncio

MAX_HEAD_BYTES = 8 << 10


class HttpError(Exception):
    """What came is no answer that could be used; the message says why."""


async def get(host: str, port: int, path: str, max_bytes: int) -> tuple[int, bytes]:
    """Return status and body; the caller sets the deadline.

    Raises:
        HttpError: the answer is no HTTP, or longer than `max_bytes`.
        OSError: there is no connection, or it broke.
    """
    literal = f"[{host}]" if ":" in host else host
    request = f"GET {path} HTTP/1.0\r\nHost: {literal}:{port}\r\nAccept: application/json\r\n\r\n".encode("ascii")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[int, bytes]] = loop.create_future()
    transport, _ = await loop.create_connection(lambda: _Exchange(request, max_bytes, answer), host, port)
    try:
        return await answer
    finally:
        transport.abort()  # whatever it still has to say, nobody listens


class _Exchange(asyncio.Protocol):
    """Sends the request and collects the answer."""

    def __init__(self, request: bytes, max_bytes: int, answer: "asyncio.Future[tuple[int, bytes]]") -> None:
        self._request = request
        self._max_bytes = max_bytes
        self._answer = answer
        self._received = bytearray()
        self._status = 0
        self._body_at = 0
        self._length: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        try:
            if not self._body_at:
                self._read_head()
            if self._body_at and self._length is not None and self._num_body_bytes >= self._length:
                self._finish(self._length)
            elif self._num_body_bytes > self._max_bytes:
                raise HttpError(f"longer than {self._max_bytes} bytes")
        except HttpError as error:
            self._fail(error)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer.done():
            return
        if error is not None:
            self._fail(error)
        elif not self._body_at or (self._length is not None and self._num_body_bytes < self._length):
            self._fail(ConnectionResetError("the connection was closed before the answer's end"))
        else:
            self._finish(self._num_body_bytes)

    @property
    def _num_body_bytes(self) -> int:
        return len(self._received) - self._body_at if self._body_at else 0

    def _read_head(self) -> None:
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            if len(self._received) > MAX_HEAD_BYTES:
                raise HttpError(f"a head of more than {MAX_HEAD_BYTES} bytes")
            return
        self._body_at = end + 4
        first, *fields = bytes(self._received[:end]).split(b"\r\n")
        version, _, rest = first.partition(b" ")
        status = rest[:3]
        if not version.startswith(b"HTTP/1.") or not status.isdigit():
            raise HttpError("no HTTP")
        self._status = int(status)
        for field in fields:
            self._read_field(*field.split(b":", 1))

    def _read_field(self, name: bytes, value: bytes = b"") -> None:
        name, value = name.strip().lower(), value.strip()
        if name == b"transfer-encoding":
            raise HttpError("an answer in chunks, which HTTP/1.0 does not have")
        if name == b"content-length":
            if not value.isdigit() or len(value) > 9 or int(value) > self._max_bytes:
                raise HttpError(f"longer than {self._max_bytes} bytes")
            self._length = int(value)

    def _finish(self, length: int) -> None:
        if not self._answer.done():
            self._answer.set_result((self._status, bytes(self._received[self._body_at : self._body_at + length])))

    def _fail(self, error: Exception) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)
