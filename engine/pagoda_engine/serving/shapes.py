"""The JSON of answers: chat and text completions, whole and in chunks. Pure.

Both ways of answering a request use one `Shape`, so that a stream and a whole answer cannot drift apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from pagoda_engine.serving.choice import Choice, Delta
from pagoda_engine.serving.usage import Usage


class Shape(Protocol):
    """How one endpoint writes its answers."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return the chunk that precedes all others of a choice, if there is one."""

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """Return the chunks for what is new in a choice."""

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """Return the chunk that carries usage and no choice."""

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """Return the answer in one piece."""


@dataclass(frozen=True)
class _Head:
    """What every document of one answer repeats."""

    identity: str
    created: int  # seconds since 1970
    model: str
    has_usage: bool  # OpenAI puts "usage": null in each chunk when a usage chunk is to come

    def chunk(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        document = self.document(kind, choices)
        return {**document, "usage": None} if self.has_usage else document

    def document(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.identity,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


class ChatShape:
    """`chat.completion` and `chat.completion.chunk`."""

    _WHOLE: ClassVar = "chat.completion"
    _CHUNK: ClassVar = "chat.completion.chunk"

    def __init__(self, request_id: str, created: int, model: str, has_usage: bool) -> None:
        self._head = _Head(f"chatcmpl-{request_id}", created, model, has_usage)

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return the chunk that says who speaks."""
        return self._chunk(index, {"role": "assistant", "content": ""})

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """Return a chunk with text, and one with the reason to end, where there is such."""
        chunks = [self._chunk(delta.index, {"content": delta.text})] if delta.text else []
        return chunks if delta.finish is None else [*chunks, self._chunk(delta.index, {}, delta.finish)]

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """Return the chunk that carries usage and no choice."""
        return {**self._head.document(self._CHUNK, []), "usage": usage.body()}

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """Return a `chat.completion`."""
        documents = [
            {
                "index": choice.index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": None,
                "finish_reason": choice.finish,
            }
            for choice in choices
        ]
        return {**self._head.document(self._WHOLE, documents), "usage": usage.body()}

    def _chunk(self, index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return self._head.chunk(
            self._CHUNK, [{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}]
        )


class CompletionShape:
    """`text_completion`, in chunks and whole."""

    _KIND: ClassVar = "text_completion"

    def __init__(self, request_id: str, created: int, model: str, has_usage: bool) -> None:
        self._head = _Head(f"cmpl-{request_id}", created, model, has_usage)

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return nothing: a text completion begins with its text."""

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """Return one chunk with text and reason to end."""
        return [self._head.chunk(self._KIND, [self._choice(delta.index, delta.text, delta.finish)])]

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """Return the chunk that carries usage and no choice."""
        return {**self._head.document(self._KIND, []), "usage": usage.body()}

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """Return a `text_completion`."""
        documents = [self._choice(choice.index, choice.text, choice.finish) for choice in choices]
        return {**self._head.document(self._KIND, documents), "usage": usage.body()}

    def _choice(self, index: int, text: str, finish: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
