"""A model's tokenizer and chat template as the server sees them: `prepare.Language` over the engine's text package."""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from pagoda_engine.serving.coverage import RenderError
from pagoda_engine.text.detokenizer import Detokenizer
from pagoda_engine.text.errors import TemplateError
from pagoda_engine.text.model_text import ModelText

# A letter or digit before a mark that no special token contains. Every pre-tokenizer that cuts before white space cuts
# here too; without it a document in Chinese, or in JSON, would have no certain cut in all its length.
_CUT_BEFORE_MARK = re.compile(r"""(?<=[^\W_])(?=[,.;:!?"(){}=，。！？；：、（）「」『』《》“”…])""")

_QUESTION = [{"role": "user", "content": "?"}]
_TOOL = {"type": "function", "function": {"name": "probe", "description": "", "parameters": {"type": "object"}}}


class ModelLanguage:
    """Safe to use from several threads."""

    def __init__(self, text: ModelText) -> None:
        self._tokenizer = text.tokenizer
        self._template = text.template

    @property
    def template_digest(self) -> bytes:
        """16 bytes over all that decides how messages become tokens."""
        return self._template.digest

    @property
    def has_template(self) -> bool:
        """Whether the model can chat at all."""
        return self._template.available

    @property
    def reads_clock(self) -> bool:
        """Whether the template's output depends on when it is rendered."""
        return self._template.reads_clock

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end an answer."""
        return self._tokenizer.eos_ids

    @cached_property
    def uses_tools(self) -> bool:
        """Whether the template does something with tools: asked of the template itself, by trying."""
        try:
            return self.render(_QUESTION, True, [_TOOL], {}) != self.render(_QUESTION, True, None, {})
        except RenderError:
            return False

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        arguments: Mapping[str, Any],
    ) -> str:
        """Render a conversation.

        Raises:
            RenderError: the template refuses these messages.
        """
        try:
            return self._template.render(
                messages, add_generation_prompt=add_generation_prompt, tools=tools, **arguments
            )
        except TemplateError as error:
            raise RenderError(str(error)) from error

    def token_ids(self, text: str, is_rendered: bool) -> Sequence[int]:
        """Return the ids of `encode` alone; a long prompt holds up nobody meanwhile."""
        return self._tokenizer.ids(text, add_special=not is_rendered)

    def encode(self, text: str, is_rendered: bool) -> tuple[Sequence[int], Sequence[int]]:
        """Return token ids and the character offset behind each."""
        encoding = self._tokenizer.encode(text, add_special=not is_rendered)
        return encoding.ids, [end for _, end in encoding.offsets]

    def boundaries(self, text: str) -> Sequence[int]:
        """Return where a cut between tokens is certain; see `coverage.Language`."""
        cuts = self._tokenizer.pretoken_boundaries(text)
        if not self._cuts_before_space:
            return cuts
        return sorted({*cuts, *(match.start() for match in _CUT_BEFORE_MARK.finditer(text))})

    @cached_property
    def _cuts_before_space(self) -> bool:
        return bool(self._tokenizer.pretoken_boundaries("so it"))

    def detokenizer(self) -> Detokenizer:
        """Return a fresh one for one choice."""
        return self._tokenizer.detokenizer()
