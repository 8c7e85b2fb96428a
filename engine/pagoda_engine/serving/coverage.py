"""How many tokens a digest vouches for. Pure: gets a language (template and tokenizer), returns numbers.

A digest says that two requests have the same canonical bytes up to a point. Its coverage says how many tokens they then
have in common, whatever follows, in whole blocks. It is a lower bound, since a router credits a pod with it:

    canonical bytes up to a point ─► text rendered from them alone ─► back to a boundary that later text cannot move
                                                                   ─► whole tokens ─► as computed ─► whole blocks

Rules: only text that is the same in the short, the long and a still longer conversation counts; the generation prompt
never does; a template that reads the clock gets nothing; where in doubt, the point before is worth as much. Cost: at
most `MAX_RENDERINGS` renderings and one tokenization for a conversation of any length.
"""

import bisect
import codecs
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pagoda_protocol.digests import DigestPoint, chat_points, text_points, token_points

MAX_RENDERINGS = 32
# Of these, the beginnings that many conversations share; the others go to the latest turns, which go on next.
_FIRST_MESSAGES = 8
_PROBE = "."


class RenderError(Exception):
    """The template refuses these messages."""


class Language(Protocol):
    """What coverage needs from a model's template and tokenizer."""

    @property
    def reads_clock(self) -> bool:
        """Whether the template's output depends on when it is rendered."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        arguments: Mapping[str, Any],
    ) -> str:
        """Render a conversation; raises RenderError."""

    def encode(self, text: str, is_rendered: bool) -> tuple[Sequence[int], Sequence[int]]:
        """Return token ids and the character offset behind each; a plain text may be given a first token."""

    def boundaries(self, text: str) -> Sequence[int]:
        """Return the offsets, ascending, where a cut between tokens is certain, whatever follows the next character."""


@dataclass(frozen=True)
class Claim:
    """The first `tokens` tokens, whole blocks, are the same in every request that shares `digest`."""

    digest: bytes
    tokens: int


@dataclass(frozen=True)
class Opening:
    """How a prompt begins: with `text`, a registered public one, which gives `num_tokens` of its tokens by itself."""

    text: str | None = None
    num_tokens: int = 0


@dataclass(frozen=True)
class Chat:
    """A chat whose prompt has been computed; `body` as it came, `messages` and the rest as the template got them."""

    body: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    arguments: Mapping[str, Any]
    reply: str | None  # the assistant's text as the client got it; None when it did not get all of it
    opening: Opening = Opening()


@dataclass(frozen=True)
class Coverage:
    """Finds claims under one digest key, template and block size."""

    language: Language
    digest_key: bytes
    template_digest: bytes
    block_tokens: int

    def of_chat(self, scope: str, chat: Chat, computed: Sequence[int]) -> list[Claim]:
        """Return claims over `computed`, the tokens of prompt and answer whose KV is complete."""
        if self.language.reads_clock:
            return []
        raw, messages = list(chat.body["messages"]), list(chat.messages)
        if chat.reply is not None:
            reply = {"role": "assistant", "content": chat.reply}
            raw, messages = [*raw, reply], [*messages, reply]
        try:
            layout = _Layout(self.language, chat, messages)
        except RenderError:
            return []
        points = chat_points(self.digest_key, scope, self.template_digest, chat.body, raw, chat.opening.text)
        ids, ends = self.language.encode(layout.text, is_rendered=True)
        cuts = zip(points, layout.cuts(points), strict=True)
        return self._claims(layout.text, ids, ends, cuts, computed, chat.opening)

    def of_text(
        self, scope: str, model: str, prompt: str, reply: str, computed: Sequence[int], opening: Opening = Opening()
    ) -> list[Claim]:
        """Return claims for a text completion; a client may go on from `prompt` and `reply` together."""
        text = prompt + reply
        inner = [
            point
            for point in text_points(self.digest_key, scope, model, text, opening.text)
            if point.content_bytes and point.num_messages == 0
        ]
        cuts = _characters(text, [point.content_bytes or 0 for point in inner])
        whole = (text_points(self.digest_key, scope, model, prompt, opening.text)[-1], len(prompt))
        pairs = sorted([*zip(inner, cuts, strict=True), whole], key=lambda pair: pair[1])
        ids, ends = self.language.encode(text, is_rendered=False)
        return self._claims(text, ids, ends, pairs, computed, opening)

    def of_tokens(self, scope: str, model: str, prompt: Sequence[int], computed: Sequence[int]) -> list[Claim]:
        """Return claims for a prompt given as token ids."""
        points = token_points(self.digest_key, scope, model, prompt)
        reached = [(point, len(prompt) if point.num_messages else (point.content_bytes or 0) // 4) for point in points]
        return self._whole_blocks(((point, min(tokens, len(computed))) for point, tokens in reached), Opening())

    def _claims(
        self,
        text: str,
        ids: Sequence[int],
        ends: Sequence[int],
        cuts: Iterable[tuple[DigestPoint, int]],
        computed: Sequence[int],
        opening: Opening,
    ) -> list[Claim]:
        boundaries = self.language.boundaries(text)
        same = common_length(ids, computed)
        reached = ((point, min(bisect.bisect_right(ends, _certain(boundaries, cut)), same)) for point, cut in cuts)
        return self._whole_blocks(reached, opening)

    def _whole_blocks(self, reached: Iterable[tuple[DigestPoint, int]], opening: Opening) -> list[Claim]:
        claims: list[Claim] = []
        best = 0
        for point, certain in reached:
            # Other tenants know a shared digest, and have of these blocks the public ones alone.
            tokens = min(certain, opening.num_tokens) if point.is_shared else certain
            whole = tokens - tokens % self.block_tokens
            if whole > best:  # a point worth no more than the one before it would only fill tables
                best = whole
                claims.append(Claim(point.digest, whole))
        return claims


class _Layout:
    """Where the messages of a conversation lie in its rendering."""

    def __init__(self, language: Language, chat: Chat, messages: Sequence[Mapping[str, Any]]) -> None:
        self._language, self._chat, self._messages = language, chat, messages
        self.text = self._render(messages, False)
        self._ends: dict[int, int] = {0: 0}
        self._measure()

    def cuts(self, points: Sequence[DigestPoint]) -> list[int]:
        """Return, for each point, up to where the text is rendered from the bytes before it alone; never falling."""
        inner = self._inner_cuts(points)
        cuts = []
        best = 0
        for point in points:
            best = max(best, self._ends.get(point.num_messages, 0), inner.get(point.position, 0))
            cuts.append(best)
        return cuts

    def _measure(self) -> None:
        """Render the beginnings of the conversation, and one that goes on, and keep how far they agree."""
        total = len(self._messages)
        probe: list[Mapping[str, Any]] = [{"role": "user", "content": _PROBE}]
        if self._messages[-1]["role"] != "assistant":
            probe.insert(0, {"role": "assistant", "content": _PROBE})
        stable = common_length(self.text, self._render([*self._messages, *probe], True))
        for count in _selected(total):
            try:
                shorter = self.text if count == total else self._render(self._messages[:count], False)
            except RenderError:  # e.g. a template that wants a user message after the system's
                continue
            self._ends[count] = min(common_length(self.text, shorter), stable)

    def _inner_cuts(self, points: Sequence[DigestPoint]) -> dict[int, int]:
        cuts: dict[int, int] = {}
        inner = (point for point in points if point.content_bytes)
        for index, group in itertools.groupby(inner, key=lambda point: point.num_messages):
            start = self._content_start(index)
            if start is None:
                continue
            members = list(group)
            offsets = _characters(self._messages[index]["content"], [point.content_bytes or 0 for point in members])
            for point, offset in zip(members, offsets, strict=True):
                cuts[point.position] = start + offset
        return cuts

    def _content_start(self, index: int) -> int | None:
        """Return where the content of message `index` stands verbatim, None if it does not or cannot be relied on.

        Not for the assistant: templates cut its reasoning out, depending on all of its text. A place found too early
        makes the bound lower, never wrong.
        """
        message = self._messages[index]
        if message["role"] == "assistant" or index not in self._ends or index + 1 not in self._ends:
            return None
        found = self.text.find(message["content"], self._ends[index], self._ends[index + 1])
        return None if found < 0 else found

    def _render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
        return self._language.render(messages, add_generation_prompt, self._chat.tools, self._chat.arguments)


def _selected(total: int) -> list[int]:
    """Return which numbers of leading messages to render."""
    if total <= MAX_RENDERINGS:
        return list(range(1, total + 1))
    return [*range(1, _FIRST_MESSAGES + 1), *range(total - (MAX_RENDERINGS - _FIRST_MESSAGES) + 1, total + 1)]


def _characters(text: str, byte_offsets: Sequence[int]) -> list[int]:
    """Return how many whole characters lie before each of the ascending `byte_offsets` of `text` in UTF-8."""
    if text.isascii():
        return list(byte_offsets)
    data = text.encode("utf-8", errors="backslashreplace")
    decoder = codecs.getincrementaldecoder("utf-8")()
    counts, start, count = [], 0, 0
    for offset in byte_offsets:
        count += len(decoder.decode(data[start:offset]))
        start = offset
        counts.append(count)
    return counts


def _certain(boundaries: Sequence[int], cut: int) -> int:
    """Return the last boundary that is certain when the text is known up to `cut` and anything may follow."""
    index = bisect.bisect_left(boundaries, cut) - 1
    return boundaries[index] if index >= 0 else 0


def common_length(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Return how many leading items two strings or two lists share."""
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    while high - low > 1:  # first[:low] is shared, first[:high] is not
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low
