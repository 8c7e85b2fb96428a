"""Keyed running digests of a request's canonical bytes: how a router knows a prefix without a tokenizer.

The canonical stream of a request, each field ended by a byte that UTF-8 cannot contain (a length prefix would make the
digests of two questions on one long document differ from the first byte on):

    version FF scope FF model FF kind FF template-digest FF head-JSON FF FD          what can change earlier text
    role FF name FF other-fields-JSON FF content FF FE                                once per message
    prompt FF FE                                                                      of a text completion
    u32le u32le …  FE                                                                 of a prompt of token ids

The scope is the caller's own, but for a request that begins with a registered public text (`public_prefix`). Its stream
begins in scope `shared`, so that all tenants have the same digests as far as the text goes, and crosses right behind
the text, within a content or a prompt or at its very end, with the bytes

    FC scope FF                                                                       the caller's scope, once

which no text can hold: from there on digests of two scopes differ. Like every other byte of the stream they count for
the multiples of 512.

A field that is absent is written as F8, so that it differs from an empty one. Text is UTF-8 in which a lone surrogate
(JSON can carry one) has its three-byte form: different requests have different streams, and no text holds a byte above
F7. A digest is taken at each absolute
multiple of 512 bytes and after each message. The hash is BLAKE2b-128 keyed with the pool's digest key: without the key
nobody can confirm a guessed prompt.
"""

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagoda_protocol.canonical import canonical_json
from pagoda_protocol.tenants import SHARED_SCOPE

DIGEST_VERSION = 1
DIGEST_BYTES = 16
STEP_BYTES = 512

_END_FIELD = b"\xff"
_END_MESSAGE = b"\xfe"
_END_HEAD = b"\xfd"
_CROSS = b"\xfc"
_ABSENT = b"\xf8"

# Request fields, beside the messages, that a chat template may turn into earlier text.
_HEAD_FIELDS = ("tools", "response_format", "chat_template_kwargs")
_MESSAGE_FIELDS = ("role", "name", "content")
_PART_SEPARATOR = "\n"


class DigestError(ValueError):
    """The request has no canonical stream; the message names the field."""


@dataclass(frozen=True)
class DigestPoint:
    """A digest and what lies before it.

    `num_messages` whole messages lie before it and, when `content_bytes` is not None, that many UTF-8 bytes of the
    next message's content (of the prompt, for completions) beside them. None means that the point lies in another
    field of that message, so that only the whole messages count.

    `is_shared`: every tenant whose request begins alike has this digest, so it can stand for public blocks alone.
    """

    digest: bytes  # 16
    position: int  # bytes of the canonical stream before it
    num_messages: int
    content_bytes: int | None
    is_shared: bool = False


def request_points(
    key: bytes, scope: str, template_digest: bytes, body: Mapping[str, Any], public_texts: Sequence[str] = ()
) -> list[DigestPoint]:
    """Return the digest points of an OpenAI request body (chat or completion), in stream order.

    Of a completion with several prompts the first one counts. `public_texts` are the pool's registered ones.

    Raises:
        DigestError: the body has neither messages nor a prompt of a known form, or a field that has no bytes.
    """
    if "messages" in body:
        messages, public = _messages(body["messages"]), public_text_of_chat(body, public_texts)
        return chat_points(key, scope, template_digest, body, messages, public)
    prompt = body.get("prompt")
    model = _model(body)
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return text_points(key, scope, model, prompt, public_text_of_prompt(prompt, public_texts))
    if isinstance(prompt, list) and prompt and all(_is_token(token) for token in prompt):
        return token_points(key, scope, model, prompt)
    raise DigestError("prompt: expected a string or a list of token ids")


def public_text_of_chat(body: Mapping[str, Any], public_texts: Sequence[str]) -> str | None:
    """Return the registered text that a chat begins with: its first message is the system's, with that and no more.

    None for a request with anything that a template may turn into earlier text: then nothing of it is public alone.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(messages[0], Mapping):
        return None
    said = {name for name, value in messages[0].items() if value is not None}
    if said != {"role", "content"} or messages[0]["role"] != "system":
        return None
    if any(body.get(name) is not None for name in _HEAD_FIELDS):
        return None
    text = content_text(messages[0]["content"])
    return text if text in public_texts else None


def public_text_of_prompt(prompt: str, public_texts: Sequence[str]) -> str | None:
    """Return the longest registered text that a completion's prompt begins with."""
    return max((text for text in public_texts if prompt.startswith(text)), key=len, default=None)


def chat_points(
    key: bytes,
    scope: str,
    template_digest: bytes,
    body: Mapping[str, Any],
    messages: Sequence[Mapping[str, Any]],
    public_text: str | None = None,
) -> list[DigestPoint]:
    """Return the digest points of `messages` under the other fields of a chat `body`.

    With a `public_text` the first message is public.

    Raises:
        DigestError: a field that has no bytes.
    """
    head = {name: body[name] for name in _HEAD_FIELDS if body.get(name) is not None}
    is_public = public_text is not None
    stream = _Stream(key, scope, is_public, _model(body), "chat", template_digest, _json(head))
    for index, message in enumerate(messages):
        stream.add_message(message)
        if is_public and index == 0:
            stream.cross(scope)
    return stream.points


def text_points(key: bytes, scope: str, model: str, prompt: str, public_text: str | None = None) -> list[DigestPoint]:
    """Return the digest points of a text completion's prompt, which begins with `public_text` if there is one."""
    stream = _Stream(key, scope, public_text is not None, model, "text", b"", _ABSENT)
    stream.add_prompt(_utf8(prompt), _END_FIELD, None if public_text is None else (len(_utf8(public_text)), scope))
    return stream.points


def token_points(key: bytes, scope: str, model: str, tokens: Sequence[int]) -> list[DigestPoint]:
    """Return the digest points of a prompt given as token ids; `content_bytes` is then four per token.

    Raises:
        DigestError: a token id that is no u32.
    """
    try:
        prompt = struct.pack(f"<{len(tokens)}I", *tokens)
    except struct.error as error:
        raise DigestError(f"prompt: expected token ids: {error}") from error
    stream = _Stream(key, scope, False, model, "tokens", b"", _ABSENT)
    stream.add_prompt(prompt, b"")
    return stream.points


def content_text(content: Any) -> str | None:
    """Return the text of a message's content, whose string form and form of text parts are made equal.

    Raises:
        DigestError: a part that is not text.
    """
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise DigestError("content: expected a string or a list of parts")
    texts = []
    for index, part in enumerate(content):
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise DigestError(f"content[{index}]: expected a part of type text")
        texts.append(part["text"])
    return _PART_SEPARATOR.join(texts)


class _Stream:
    """Feeds the running hash and takes a digest wherever one is due."""

    def __init__(
        self, key: bytes, scope: str, is_public: bool, model: str, kind: str, template_digest: bytes, head: bytes
    ) -> None:
        self.points: list[DigestPoint] = []
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES, key=key)
        self._position = 0
        self._num_messages = 0
        self._is_shared = is_public
        fields = (
            str(DIGEST_VERSION).encode(),
            _utf8(SHARED_SCOPE if is_public else scope),
            _utf8(model),
            kind.encode(),
            template_digest.hex().encode(),
        )
        self._feed(b"".join(field + _END_FIELD for field in (*fields, head)) + _END_HEAD)

    def add_message(self, message: Mapping[str, Any]) -> None:
        others = {name: value for name, value in message.items() if name not in _MESSAGE_FIELDS and value is not None}
        content = content_text(message.get("content"))
        self._feed(b"".join(_optional(name, message.get(name)) + _END_FIELD for name in ("role", "name")))
        self._feed((_json(others) if others else _ABSENT) + _END_FIELD)
        self._feed(_optional("content", content), is_content=content is not None)
        self._finish_message(_END_FIELD + _END_MESSAGE)

    def add_prompt(self, prompt: bytes, end: bytes, crossing: tuple[int, str] | None = None) -> None:
        """Feed a prompt that crosses into a scope after so many bytes."""
        public_bytes, scope = crossing or (0, "")
        if crossing is not None:
            self._feed(prompt[:public_bytes], is_content=True)
            self._take_once(public_bytes)
            self.cross(scope)
        self._feed(prompt[public_bytes:], is_content=True, offset=public_bytes)
        self._finish_message(end + _END_MESSAGE)

    def cross(self, scope: str) -> None:
        """Go on in `scope`. A point within these bytes still counts as shared: it may say half a scope."""
        self._feed(_CROSS + _utf8(scope) + _END_FIELD)
        self._is_shared = False

    def _finish_message(self, end: bytes) -> None:
        self._feed(end)
        self._num_messages += 1
        if self.points and self.points[-1].position == self._position:
            self.points.pop()  # a multiple of 512 fell on the end of the message: the end says more
        self._take(0)

    def _take_once(self, content_bytes: int) -> None:
        if not self.points or self.points[-1].position != self._position:
            self._take(content_bytes)

    def _feed(self, data: bytes, is_content: bool = False, offset: int = 0) -> None:
        for start, piece in _pieces(data, self._position):
            self._hash.update(piece)
            self._position += len(piece)
            if self._position % STEP_BYTES == 0:
                self._take(offset + start + len(piece) if is_content else None)

    def _take(self, content_bytes: int | None) -> None:
        self.points.append(
            DigestPoint(self._hash.digest(), self._position, self._num_messages, content_bytes, self._is_shared)
        )


def _pieces(data: bytes, position: int) -> Iterator[tuple[int, bytes]]:
    """Cut `data`, which begins at `position` of the stream, at multiples of STEP_BYTES."""
    start = 0
    while start < len(data):
        stop = start + STEP_BYTES - (position + start) % STEP_BYTES
        yield start, data[start:stop]
        start = stop


def _messages(value: Any) -> Sequence[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(message, Mapping) for message in value):
        raise DigestError("messages: expected a list of objects")
    return value


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32


def _model(body: Mapping[str, Any]) -> str:
    model = body.get("model", "")
    if not isinstance(model, str):
        raise DigestError("model: expected a string")
    return model


def _optional(name: str, value: Any) -> bytes:
    if value is None:
        return _ABSENT
    if not isinstance(value, str):  # "1" and 1 are different requests
        raise DigestError(f"{name}: expected a string")
    return _utf8(value)


def _json(value: Any) -> bytes:
    try:
        return canonical_json(value)
    except (ValueError, RecursionError) as error:  # Python's parser lets NaN in
        raise DigestError(f"not JSON: {error}") from error


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", errors="surrogatepass")
