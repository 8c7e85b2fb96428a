"""The model's own chat template, rendered in a sandbox with Hugging Face's conventions.

A template is code out of a model file: it runs immutable and sandboxed, and its output is bounded. What it raises
speaks of the request's messages, so it becomes a `TemplateError`.
"""

import datetime
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from pagoda_engine.model.location import ModelLocation
from pagoda_engine.text.errors import TemplateError, TokenizerError
from pagoda_engine.text.tokenizer import Tokenizer, optional_json

MAX_CHARACTERS = 32 << 20  # of one rendered prompt
MAX_SECONDS = 10.0  # of rendering, looked at between pieces of output
_CLOCK = "strftime_now"


class ChatTemplate:
    """Renders conversations. Without a template the model can only complete, and `render` says so."""

    def __init__(
        self, source: str | None, tokenizer: Tokenizer, *, now: Callable[[], datetime.datetime] = datetime.datetime.now
    ) -> None:
        """Compile `source`; `now` is the clock for templates that write a date.

        Raises:
            TokenizerError: the template is no valid Jinja.
        """
        self.digest = hashlib.sha256((source or "").encode() + b"\xff" + tokenizer.digest).digest()[:16]
        self._tokens = {"bos_token": tokenizer.bos_token or "", "eos_token": tokenizer.eos_token or ""}
        self._template: jinja2.Template | None = None
        self.reads_clock = False
        if source is None:
            return
        environment = _environment(now)
        try:
            names = environment.parse(source).find_all(jinja2.nodes.Name)
            self.reads_clock = any(name.name == _CLOCK for name in names)
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TokenizerError(f"the model's chat template is not valid: {error}") from error

    @property
    def available(self) -> bool:
        """Whether the model can chat."""
        return self._template is not None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """Return the prompt of a conversation; `kwargs` are the request's template arguments.

        Raises:
            TemplateError: no template, or one that refuses these messages, fails on them or writes without end.
        """
        if self._template is None:
            raise TemplateError("this model has no chat template: use /v1/completions")
        context = self._tokens | kwargs
        context |= {
            "messages": list(messages),
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        context.setdefault("documents", None)
        try:
            return self._bounded(self._template, context)
        except TemplateError:
            raise
        except Exception as error:  # a template can raise anything a Python expression can
            raise TemplateError(f"the chat template cannot render these messages: {error}") from error

    @staticmethod
    def _bounded(template: jinja2.Template, context: Mapping[str, Any]) -> str:
        deadline = time.monotonic() + MAX_SECONDS
        pieces, length = [], 0
        for piece in template.generate(context):
            length += len(piece)
            if length > MAX_CHARACTERS or time.monotonic() > deadline:
                raise TemplateError(f"the rendered prompt is longer than {MAX_CHARACTERS} characters or takes too long")
            pieces.append(piece)
        return "".join(pieces)


def load_template(
    location: ModelLocation, tokenizer: Tokenizer, metadata: Mapping[str, Any] | None = None
) -> ChatTemplate:
    """Return the chat template of a model: from its GGUF file's `metadata`, or from the files of its folder.

    Raises:
        TokenizerError: the template is no valid Jinja, or its file cannot be read.
    """
    if location.is_gguf:
        return ChatTemplate((metadata or {}).get("tokenizer.chat_template"), tokenizer)
    return ChatTemplate(_source_in_folder(location.path), tokenizer)


def _source_in_folder(folder: Path) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise TokenizerError(f"{file}: cannot be read ({error})") from error
    source = optional_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(source, list):  # several by name
        source = {entry["name"]: entry["template"] for entry in source}.get("default")
    return source if isinstance(source, str) else None


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training; here it renders its body."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment(now: Callable[[], datetime.datetime]) -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals[_CLOCK] = lambda layout: now().strftime(layout)
    return environment


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
