"""Ids to text while they come: never half a character, and never text that a later id would change."""

import codecs
from collections.abc import Callable, Set
from typing import Protocol


class Detokenizer(Protocol):
    """Takes the ids of one sequence in order."""

    def feed(self, token_id: int) -> str:
        """Return the text that has become certain by this id; often one token's, sometimes nothing."""

    def finish(self) -> str:
        """Return what is left, half a character as U+FFFD; nothing may be fed afterwards."""


class ByteDetokenizer:
    """For byte-level vocabularies: a token is bytes, and UTF-8 says where a character ends."""

    def __init__(self, token: Callable[[int], str | None], *, skip: Set[int]) -> None:
        self._token = token
        self._skip = skip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        """Return newly certain text; see `Detokenizer`."""
        token = None if token_id in self._skip else self._token(token_id)
        return "" if token is None else self._decoder.decode(token_bytes(token))

    def finish(self) -> str:
        """Return what is left; see `Detokenizer`."""
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any other vocabulary: decodes the last few ids together, and waits while the end is no whole character."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []  # emitted already; decides how what follows is spaced
        self._pending: list[int] = []

    def feed(self, token_id: int) -> str:
        """Return newly certain text; see `Detokenizer`."""
        self._pending.append(token_id)
        text = self._new_text()
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        if text:
            self._context, self._pending = self._pending, []
        return text

    def finish(self) -> str:
        """Return what is left; see `Detokenizer`."""
        text, self._pending = self._new_text(), []
        return text

    def _new_text(self) -> str:
        return self._decode(self._context + self._pending)[len(self._decode(self._context)) :]


def token_bytes(token: str) -> bytes:
    """Return the bytes a byte-level token stands for; an added token with other characters stands for its UTF-8."""
    try:
        return bytes(_BYTES[character] for character in token)
    except KeyError:
        return token.encode()


def _byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, every other byte for a letter from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + rank): byte for rank, byte in enumerate(others)}


_BYTES = _byte_of_character()
