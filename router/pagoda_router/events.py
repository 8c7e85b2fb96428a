"""Server-sent events as bytes: what may be passed on so that an error event can follow at any time.

Bytes go through unchanged, but only in whole events: half an event followed by an error event would reach the client as
one event that is neither.
"""

_MAX_HELD_BYTES = 1 << 20  # larger events are passed on in parts rather than held
_DONE = b"data: [DONE]"
_BOUNDARIES = (b"\n\n", b"\r\n\r\n", b"\r\r")


class EventSplitter:
    """Cuts a byte stream at the ends of events."""

    def __init__(self) -> None:
        self._held = b""
        self._tail = b""

    def feed(self, chunk: bytes) -> bytes:
        """Take more bytes; return those that now end an event (all of them since the last return), maybe none."""
        data = self._held + chunk
        end = max((data.rfind(boundary) + len(boundary) for boundary in _BOUNDARIES if boundary in data), default=0)
        if end == 0 and len(data) > _MAX_HELD_BYTES:
            end = len(data)
        self._held = data[end:]
        if end:
            self._tail = data[max(0, end - 32) : end]
        return data[:end]

    def rest(self) -> bytes:
        """Return and forget what is held, for a stream that has ended as it should."""
        held, self._held = self._held, b""
        return held

    @property
    def is_done(self) -> bool:
        """Whether the last whole event was OpenAI's `[DONE]`."""
        return self._tail.rstrip().endswith(_DONE)
