"""OpenAI request bodies, from parsed JSON to frozen dataclasses. Pure: no tokenizer, no clock, no model.

Rules: what a caller asks for is done or refused by name, never dropped. Fields that OpenAI defines as without effect on
the answer are ignored; fields with an effect that this engine does not have are accepted only with the value that asks
for nothing. Beyond OpenAI: `top_k`, `ignore_eos`, `min_tokens`, `chat_template_kwargs`, and a prompt of token ids.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pagoda_engine.serving.errors import UnknownModelError
from pagoda_engine.serving.fields import Fields
from pagoda_engine.serving.messages import parse_messages, parse_tools

MAX_CHOICES = 8
MAX_PROMPTS = 64
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's own

_IGNORED = frozenset(
    {"user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
)
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
}
_NEUTRAL_CHAT: Mapping[str, tuple[Any, ...]] = {
    "logprobs": (False,),
    "top_logprobs": (0,),
    "store": (False,),
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("none",),
    "tool_choice": ("auto", "none"),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
}
_NEUTRAL_COMPLETION: Mapping[str, tuple[Any, ...]] = {
    "logprobs": (),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
}
# What a chat template is given by us and a caller therefore cannot set.
_TEMPLATE_NAMES = frozenset({"self", "messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})


@dataclass(frozen=True)
class Decoding:
    """How tokens are to be chosen and when to end; the same for chat and text completions."""

    max_tokens: int | None = None
    """None: as many as fit the context, of a text completion `DEFAULT_COMPLETION_TOKENS` at most."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all."""
    seed: int | None = None
    """None: one is drawn at admission."""
    stops: tuple[str, ...] = ()
    num_choices: int = 1
    ignore_eos: bool = False
    min_tokens: int = 0
    """An end-of-text token among the first `min_tokens` does not end the answer."""


@dataclass(frozen=True)
class Delivery:
    """How the answer is to be sent."""

    stream: bool = False
    include_usage: bool = False
    """A last chunk with usage and no choices; only with `stream`."""


@dataclass(frozen=True)
class ChatRequest:
    """A body of `POST /v1/chat/completions`."""

    model: str
    messages: Sequence[Mapping[str, Any]]
    """As the template gets them: contents are strings, key order is fixed."""
    tools: Sequence[Mapping[str, Any]] | None = None
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    decoding: Decoding = Decoding()
    delivery: Delivery = Delivery()


@dataclass(frozen=True)
class CompletionRequest:
    """A body of `POST /v1/completions`."""

    model: str
    prompts: Sequence[str | Sequence[int]]
    """At least one; answered in this order."""
    decoding: Decoding = Decoding()
    delivery: Delivery = Delivery()


def parse_chat(body: Mapping[str, Any], models: Sequence[str]) -> ChatRequest:
    """Read a chat completion request for one of `models`.

    Raises:
        InvalidRequestError: naming the field that is wrong.
        UnknownModelError: the model is not in `models`.
    """
    fields = Fields(body)
    model = _model(fields, models)
    messages = parse_messages(fields)
    tools = parse_tools(fields)
    template_arguments = fields.mapping("chat_template_kwargs") or {}
    for name in sorted(_TEMPLATE_NAMES & template_arguments.keys()):
        fields.refuse(f"chat_template_kwargs.{name}", "set by the engine; leave it out")
    newer, older = fields.integer("max_completion_tokens", 1), fields.integer("max_tokens", 1)
    if newer is not None and older is not None and newer != older:
        fields.refuse("max_tokens", "differs from max_completion_tokens; send one of them")
    _require_text_format(fields)
    decoding = _decoding(fields, older if newer is None else newer)
    delivery = _delivery(fields)
    fields.require_neutral(_NEUTRAL_CHAT)
    fields.finish(ignored=_IGNORED | {"prediction"} | ({"parallel_tool_calls"} if tools else set()))
    return ChatRequest(model, messages, tools, template_arguments, decoding, delivery)


def parse_completion(body: Mapping[str, Any], models: Sequence[str]) -> CompletionRequest:
    """Read a text completion request for one of `models`.

    Raises:
        InvalidRequestError: naming the field that is wrong.
        UnknownModelError: the model is not in `models`.
    """
    fields = Fields(body)
    model = _model(fields, models)
    prompts = _prompts(fields)
    decoding = _decoding(fields, fields.integer("max_tokens", 1))
    if len(prompts) * decoding.num_choices > MAX_PROMPTS:
        fields.refuse("prompt", f"prompts times n is limited to {MAX_PROMPTS}")
    delivery = _delivery(fields)
    fields.require_neutral(_NEUTRAL_COMPLETION)
    fields.finish(ignored=_IGNORED)
    return CompletionRequest(model, prompts, decoding, delivery)


def _model(fields: Fields, models: Sequence[str]) -> str:
    model = fields.text("model")
    if model is None:
        fields.refuse("model", f"required; this engine serves {', '.join(models)}")
    if model not in models:
        raise UnknownModelError(f"The model {model!r} is not served here; use {', '.join(models)}.", param="model")
    return model


def _decoding(fields: Fields, max_tokens: int | None) -> Decoding:
    temperature, top_p = fields.number("temperature", 0, 2), fields.number("top_p", 0, 1)
    top_k = fields.integer("top_k", -1)
    min_tokens = fields.integer("min_tokens", 0) or 0
    if max_tokens is not None and min_tokens > max_tokens:
        fields.refuse("min_tokens", f"expected at most max_tokens ({max_tokens}), got {min_tokens}")
    decoding = Decoding(
        max_tokens=max_tokens,
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=max(top_k or 0, 0),
        seed=fields.integer("seed", -(2**63), 2**64 - 1),
        stops=_stops(fields),
        num_choices=fields.integer("n", 1, MAX_CHOICES) or 1,
        ignore_eos=fields.boolean("ignore_eos"),
        min_tokens=min_tokens,
    )
    fields.require_neutral(_NEUTRAL)
    return decoding


def _delivery(fields: Fields) -> Delivery:
    stream = fields.boolean("stream")
    options = fields.mapping("stream_options")
    if options is None:
        return Delivery(stream)
    if not stream:
        fields.refuse("stream_options", "only allowed when stream is true")
    reader = Fields(options, fields.name_of("stream_options"))
    include_usage = reader.boolean("include_usage")
    # Obfuscation pads chunks against eavesdroppers; to leave it out is to do what was asked for.
    reader.require_neutral({"include_obfuscation": (False,)})
    reader.finish()
    return Delivery(stream, include_usage)


def _require_text_format(fields: Fields) -> None:
    value = fields.mapping("response_format")
    if value is not None and (value.get("type") != "text" or len(value) > 1):
        fields.refuse("response_format", 'only {"type": "text"} is supported')


def _stops(fields: Fields) -> tuple[str, ...]:
    value = fields.take("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        fields.refuse("stop", "expected a string or a list of strings")
    if len(stops) > MAX_STOPS:
        fields.refuse("stop", f"expected at most {MAX_STOPS} strings, got {len(stops)}")
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_CHARACTERS:
            fields.refuse("stop", f"expected strings of 1 to {MAX_STOP_CHARACTERS} characters")
    return tuple(stops)


def _prompts(fields: Fields) -> list[str | list[int]]:
    value = fields.take("prompt")
    if value is None:
        fields.refuse("prompt", "required: a string, a list of strings, or a list of token ids")
    if isinstance(value, str) or (isinstance(value, list) and value and _is_token(value[0])):
        value = [value]
    if not isinstance(value, list) or not value:
        fields.refuse("prompt", "expected a string, a list of strings, or a list of token ids")
    if len(value) > MAX_PROMPTS:
        fields.refuse("prompt", f"expected at most {MAX_PROMPTS} prompts, got {len(value)}")
    for index, prompt in enumerate(value):
        name = "prompt" if len(value) == 1 else f"prompt[{index}]"
        if not isinstance(prompt, str) and not (isinstance(prompt, list) and all(map(_is_token, prompt))):
            fields.refuse(name, "expected a string or a list of token ids")
        if not prompt:
            fields.refuse(name, "must not be empty")
    return value


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32
