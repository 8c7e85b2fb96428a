"""memcached's meta protocol, the part of it that we speak, without any I/O (memcached's doc/protocol.txt).

The parser says where the next bytes shall be received (`buffers`) and is told how many came (`received`). Once it has
read the line of a value it asks for the value's *sink*, the caller's memory, and from then on hands out that memory
itself, followed by its own small line buffer. So a payload is received in place: at most its first
`_LINE_BUFFER_BYTES` bytes, which arrived behind their line, are copied.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_LINE_BUFFER_BYTES = 1024
_MAX_VALUE_BYTES = 1 << 30
_MAX_SINK_BUFFERS = 16  # handed out at once; the kernel takes at most 1024 in one call
_CODES = frozenset(
    (b"VA", b"HD", b"EN", b"NF", b"NS", b"EX", b"MN", b"STAT", b"END", b"STORED", b"CLIENT_ERROR", b"SERVER_ERROR")
)
_REFUSALS = frozenset((b"unauthenticated", b"authentication failure"))

END_OF_BATCH = b"mn\r\n"  # answered after everything sent before it, also where quiet commands were silent
GET_SETTINGS = b"stats settings\r\n"
END_OF_VALUE = b"\r\n"


def probe_command(key: bytes, opaque: int) -> bytes:
    """Ask whether `key` exists, without touching the LRU; a miss is silent."""
    return b"mg %b s u q O%d\r\n" % (key, opaque)


def get_command(key: bytes, opaque: int) -> bytes:
    """Ask for the value, client flags and CAS of `key`; a miss is silent."""
    return b"mg %b v f c q O%d\r\n" % (key, opaque)


def delete_command(key: bytes, opaque: int, cas: int) -> bytes:
    """Delete `key` if it is still the version `cas`; silent unless it was not."""
    return b"md %b C%d q O%d\r\n" % (key, cas, opaque)


def store_command(
    key: bytes, opaque: int, value_bytes: int, client_flag: int, *, add: bool = False, seconds: int = 0
) -> bytes:
    """Announce a value, which follows, and then `END_OF_VALUE`. With `add` an existing item stays (answer NS).

    It is forgotten after `seconds` (0: when its place is needed).
    """
    extras = (b" ME" if add else b"") + (b" T%d" % seconds if seconds else b"")
    return b"ms %b %d F%d%b O%d\r\n" % (key, value_bytes, client_flag, extras, opaque)


def log_in_command(username: bytes, password: bytes) -> bytes:
    """Say who we are, as memcached's ASCII authentication wants it: a `set` whose key means nothing.

    A node that does not authenticate would keep the value: it is asked first, and the item is born expired.
    """
    value = b"%b %b" % (username, password)
    return b"set login 0 -1 %d\r\n%b\r\n" % (len(value), value)


class ProtocolError(Exception):
    """The peer said something that memcached does not say; nothing after it can be trusted."""


@dataclass(slots=True)
class Response:
    """One answer: its code, the size of its value if it has one, and its flags by letter."""

    code: bytes
    size: int | None = None
    flags: dict[bytes, bytes] = field(default_factory=dict)
    words: tuple[bytes, ...] = ()

    def number(self, letter: bytes) -> int:
        """Return the number under a flag.

        Raises:
            ProtocolError: it is absent or no number.
        """
        text = self.flags.get(letter, b"")
        if not text.isdigit():
            raise ProtocolError(f"{self.code!r} without a number under {letter!r}")
        return int(text)


Sink = Sequence[memoryview]


class ResponseParser:
    """Turns a byte stream into responses, however it is cut into reads."""

    def __init__(self, sink_for: Callable[[Response], Sink]) -> None:
        """`sink_for` returns the memory for a value's bytes, in all exactly `response.size`; it may raise."""
        self._sink_for = sink_for
        self._line_buffer = memoryview(bytearray(_LINE_BUFFER_BYTES))
        self._end = 0  # of the bytes in the line buffer that are not consumed
        self._value: Response | None = None  # whose sink is being filled, or whose end is awaited
        self._sink: list[memoryview] = []
        self._responses: list[Response] = []

    @property
    def is_idle(self) -> bool:
        """Whether no byte of an unfinished response has been seen."""
        return self._end == 0 and self._value is None

    def buffers(self) -> list[memoryview]:
        """Return the memory for the next bytes, in order. Never empty."""
        if len(self._sink) > _MAX_SINK_BUFFERS:
            return self._sink[:_MAX_SINK_BUFFERS]
        return [*self._sink, self._line_buffer[self._end :]]

    def received(self, num_bytes: int) -> list[Response]:
        """Account for `num_bytes` received into `buffers()`; return the responses that are now complete.

        Raises:
            ProtocolError: the stream is not memcached's.
        """
        self._end += self._fill_sink(num_bytes)
        self._consume_lines()
        responses, self._responses = self._responses, []
        return responses

    def _fill_sink(self, num_bytes: int) -> int:
        """Take bytes that went straight into the sink off it; return how many went past it."""
        while num_bytes and self._sink:
            part = self._sink[0]
            if num_bytes < len(part):
                self._sink[0] = part[num_bytes:]
                return 0
            num_bytes -= len(part)
            del self._sink[0]
        return num_bytes

    def _consume_lines(self) -> None:
        start = 0
        held = bytes(self._line_buffer[: self._end])
        while start < len(held) and not self._sink:
            if self._value is not None:
                if len(held) - start < len(END_OF_VALUE):
                    break
                if not held.startswith(END_OF_VALUE, start):
                    raise ProtocolError("a value does not end where it said")
                self._responses.append(self._value)
                self._value = None
                start += len(END_OF_VALUE)
                continue
            end = held.find(b"\r\n", start)
            if end < 0:
                if len(held) - start == _LINE_BUFFER_BYTES:
                    raise ProtocolError("a line without an end")
                break
            self._begin(parse_line(held[start:end]))
            start = end + 2
            start += self._copy_into_sink(held, start)
        self._line_buffer[: len(held) - start] = held[start:]
        self._end = len(held) - start

    def _begin(self, response: Response) -> None:
        if response.size is None:
            self._responses.append(response)
            return
        self._value = response
        self._sink = [part for part in self._sink_for(response) if len(part)]
        assert sum(map(len, self._sink)) == response.size, "a sink must be as long as its value"

    def _copy_into_sink(self, held: bytes, start: int) -> int:
        """Move what arrived behind a value's line to where it belongs; return how many bytes that were."""
        copied = 0
        while self._sink and start + copied < len(held):
            part = self._sink[0]
            piece = held[start + copied : start + copied + len(part)]
            part[: len(piece)] = piece
            copied += self._take(len(piece))
        return copied

    def _take(self, num_bytes: int) -> int:
        self._fill_sink(num_bytes)
        return num_bytes


def parse_line(line: bytes) -> Response:
    """Read one response line without its end.

    Raises:
        ProtocolError: it is none of those that our commands can be answered with.
    """
    code, *words = line.split(b" ")
    if code not in _CODES:
        raise ProtocolError(f"unexpected answer {line[:40]!r}")
    if code == b"CLIENT_ERROR" and b" ".join(words) not in _REFUSALS:
        raise ProtocolError(f"it did not understand us: {line[:40]!r}")
    if code in (b"STAT", b"CLIENT_ERROR", b"SERVER_ERROR"):
        return Response(code, words=tuple(words))
    size = None
    if code == b"VA":
        text = words.pop(0) if words else b""
        if not text.isdigit() or int(text) > _MAX_VALUE_BYTES:
            raise ProtocolError(f"no size of a value: {line[:40]!r}")
        size = int(text)
    return Response(code, size, {word[:1]: word[1:] for word in words if word})
