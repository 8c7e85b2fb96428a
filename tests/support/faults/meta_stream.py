"""Cuts one direction of memcached's meta protocol into frames, however it was cut into reads. Pure.

A frame is a line with its value, if it has one: `VA <size> …` in answers, `ms <key> <size> …` in questions.
"""

from dataclasses import dataclass

END = b"\r\n"


@dataclass
class Frame:
    """One line, without its end, and the value behind it, without its end."""

    line: bytes
    value: bytes | None = None

    @property
    def code(self) -> bytes:
        """The line's first word."""
        return self.line.split(b" ", 1)[0]

    @property
    def opaque(self) -> bytes | None:
        """The word under the flag O, None without one."""
        return next((word[1:] for word in self.line.split(b" ")[1:] if word[:1] == b"O" and word[1:].isdigit()), None)

    def with_value(self, value: bytes) -> "Frame":
        """Return this frame with another value and its size in the line."""
        words = self.line.split(b" ")
        words[_SIZE_WORDS[words[0]]] = b"%d" % len(value)
        return Frame(b" ".join(words), value)

    def encode(self) -> bytes:
        """Return the bytes on the wire."""
        return self.line + END if self.value is None else b"".join((self.line, END, self.value, END))


_SIZE_WORDS = {b"VA": 1, b"ms": 2}


class FrameReader:
    """Takes bytes in any pieces and gives whole frames."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._line: bytes | None = None  # of the frame whose value is awaited
        self._wanted = 0  # bytes of that value with its end

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that are complete now.

        Raises:
            ValueError: a line's size is no number.
        """
        self._held += data
        frames: list[Frame] = []
        start = 0
        while True:
            if self._line is not None:
                if len(self._held) - start < self._wanted:
                    break
                value = bytes(self._held[start : start + self._wanted - len(END)])
                frames.append(Frame(self._line, value))
                start += self._wanted
                self._line = None
                continue
            end = self._held.find(END, start)
            if end < 0:
                break
            line = bytes(self._held[start:end])
            start = end + len(END)
            size_word = _SIZE_WORDS.get(line[:2]) if line[2:3] == b" " else None
            if size_word is None:
                frames.append(Frame(line))
            else:
                self._line = line
                self._wanted = int(line.split(b" ")[size_word]) + len(END)
        del self._held[:start]
        return frames
