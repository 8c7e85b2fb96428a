"""From a request's bytes to prompts of tokens. Pure but for the language; runs in a worker thread, for it may be slow.

Rules: whatever can be refused is refused here, before the engine hears of it; the raw body is kept beside the parsed
one, because digests are taken over what the router saw.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pagoda_engine.serving import coverage
from pagoda_engine.serving.choice import Detokenizer
from pagoda_engine.serving.coverage import Chat, Claim, Coverage, Opening
from pagoda_engine.serving.errors import ContextLengthError, InvalidRequestError
from pagoda_engine.serving.fields import parse_json_object
from pagoda_engine.serving.openai import (
    DEFAULT_COMPLETION_TOKENS,
    ChatRequest,
    CompletionRequest,
    Decoding,
    Delivery,
    parse_chat,
    parse_completion,
)
from pagoda_engine.serving.public import PublicTexts


class Language(coverage.Language, Protocol):
    """A model's template and tokenizer, as the server uses them."""

    @property
    def uses_tools(self) -> bool:
        """Whether the template does something with tools."""

    @property
    def has_template(self) -> bool:
        """Whether the model can chat at all."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end an answer."""

    def token_ids(self, text: str, is_rendered: bool) -> Sequence[int]:
        """Return the ids of `encode` alone."""

    def detokenizer(self) -> Detokenizer:
        """Return a fresh one for one choice."""


@dataclass(frozen=True)
class Limits:
    """What fits this engine."""

    max_tokens: int
    """Prompt and answer together."""
    vocab_size: int


@dataclass(frozen=True)
class Prepared:
    """A request that is ready to be submitted."""

    request: ChatRequest | CompletionRequest
    body: Mapping[str, Any]  # as it came
    prompts: Sequence[Sequence[int]]
    openings: Sequence[Opening]  # one per prompt
    max_tokens: Sequence[int]  # one per prompt

    @property
    def decoding(self) -> Decoding:
        """How tokens are to be chosen."""
        return self.request.decoding

    @property
    def delivery(self) -> Delivery:
        """How the answer is to be sent."""
        return self.request.delivery

    def claims(self, coverage: Coverage, scope: str, text: str, is_whole: bool, computed: Sequence[int]) -> list[Claim]:
        """Return what the digests of this request cover, after an answer `text` to its first prompt.

        `is_whole`: the client got the answer to its end. `computed`: prompt and answer tokens whose KV is complete.
        """
        if isinstance(self.request, ChatRequest):
            request = self.request
            reply = text if is_whole else None
            chat = Chat(self.body, request.messages, request.tools, request.template_arguments, reply, self.openings[0])
            return coverage.of_chat(scope, chat, computed)
        model, prompt = self.request.model, self.request.prompts[0]
        if isinstance(prompt, str):
            return coverage.of_text(scope, model, prompt, text, computed, self.openings[0])
        return coverage.of_tokens(scope, model, prompt, computed)


def prepare_chat(data: bytes, model: str, language: Language, limits: Limits, public: PublicTexts) -> Prepared:
    """Parse, render and tokenize a chat completion request.

    Raises:
        ApiError: it cannot be served as it is.
    """
    body = parse_json_object(data)
    request = parse_chat(body, (model,))
    if not language.has_template:
        raise InvalidRequestError("This model has no chat template; use /v1/completions.", param="messages")
    if request.tools and not language.uses_tools:
        raise InvalidRequestError("tools: this model's chat template does not know tools.", param="tools")
    try:
        text = language.render(request.messages, True, request.tools, request.template_arguments)
    except coverage.RenderError as error:
        raise InvalidRequestError(f"messages: the chat template refuses them: {error}", param="messages") from error
    tokens = language.token_ids(text, is_rendered=True)
    room = _room(tokens, request.decoding, limits, "messages")
    return Prepared(request, body, [tokens], [public.of_chat(body, tokens)], [room])


def prepare_completion(data: bytes, model: str, language: Language, limits: Limits, public: PublicTexts) -> Prepared:
    """Parse and tokenize a text completion request.

    Raises:
        ApiError: it cannot be served as it is.
    """
    body = parse_json_object(data)
    request = parse_completion(body, (model,))
    prompts = [_tokens(prompt, language, limits) for prompt in request.prompts]
    room = [_room(prompt, request.decoding, limits, "prompt") for prompt in prompts]
    if request.decoding.max_tokens is None:
        room = [min(tokens, DEFAULT_COMPLETION_TOKENS) for tokens in room]
    openings = [public.of_prompt(given, prompt) for given, prompt in zip(request.prompts, prompts, strict=True)]
    return Prepared(request, body, prompts, openings, room)


def _tokens(prompt: str | Sequence[int], language: Language, limits: Limits) -> Sequence[int]:
    if isinstance(prompt, str):
        return language.token_ids(prompt, is_rendered=False)
    largest = max(prompt)
    if largest >= limits.vocab_size:
        raise InvalidRequestError(
            f"prompt: token id {largest} is not in the vocabulary (0 to {limits.vocab_size - 1}).", param="prompt"
        )
    return prompt


def _room(prompt: Sequence[int], decoding: Decoding, limits: Limits, param: str) -> int:
    """Return how many tokens may be generated after `prompt`."""
    room = limits.max_tokens - len(prompt)
    if not prompt:
        raise InvalidRequestError(f"{param}: gives no tokens.", param=param)
    if room < 1:
        raise ContextLengthError(
            f"This model's maximum context length is {limits.max_tokens} tokens, and one is needed for the answer; "
            f"the {param} came to {len(prompt)} tokens. Shorten the {param}.",
            param=param,
        )
    if decoding.max_tokens is None:
        return room
    if decoding.max_tokens > room:
        raise ContextLengthError(
            f"This model's maximum context length is {limits.max_tokens} tokens; you requested "
            f"{len(prompt) + decoding.max_tokens} ({len(prompt)} in the {param}, {decoding.max_tokens} in the answer). "
            f"Shorten the {param} or lower max_tokens.",
            param=param,
        )
    return decoding.max_tokens
