"""Templates and a real tokenizer for tests of coverage, without the engine's own text package."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from tokenizers import Tokenizer

from pagoda_engine.serving.coverage import RenderError
from tests.support.checkpoints import CHAT_TEMPLATE, SPECIAL_TOKENS, tokenizer_dict

# Trims contents, merges nothing, wants strict turns.
TRIMMING = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' and loop.first %}{{ refuse('no first word') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + ' ' + message['content'] | trim + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant ' }}{% endif %}"
)
# Shows the reasoning of the last answer only, as reasoning models' templates do, and opens answers with an empty one.
FORGETFUL = (
    "{% for message in messages %}{% set content = message['content'] %}"
    "{% if message['role'] == 'assistant' and not loop.last and '</t>' in content %}"
    "{% set content = content.split('</t>')[-1] %}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<t></t>' }}{% endif %}"
)
# Moves the system message into the last user message, so that every turn rewrites the one before.
MOVING = (
    "{% set system = messages[0]['content'] if messages[0]['role'] == 'system' else '' %}"
    "{% for message in messages if message['role'] != 'system' %}"
    "{{ '[' + message['role'] + ']' + (system + '\n\n' if loop.last and message['role'] == 'user' else '')"
    " + message['content'] }}{% endfor %}"
)
TEMPLATES = (CHAT_TEMPLATE, TRIMMING, FORGETFUL, MOVING)


class TemplateLanguage:
    """A template over the tiny checkpoint's tokenizer."""

    added_tokens: Sequence[str] = SPECIAL_TOKENS

    def __init__(self, template: str = CHAT_TEMPLATE, reads_clock: bool = False) -> None:
        environment = jinja2.Environment()
        environment.globals["refuse"] = self._refuse
        self._template = environment.from_string(template)
        self._tokenizer = Tokenizer.from_str(json.dumps(tokenizer_dict()))
        self.reads_clock = reads_clock
        self.num_renderings = 0

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        self.num_renderings += 1
        return self._template.render(messages=messages, add_generation_prompt=add_generation_prompt)

    def encode(self, text: str) -> tuple[list[int], list[int]]:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, [end for _, end in encoding.offsets]

    def boundaries(self, text: str) -> list[int]:
        found, start = {0, len(text)}, 0
        for piece in re.split("(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")", text):
            found.add(start)
            if piece not in SPECIAL_TOKENS:
                for _, (begin, end) in self._tokenizer.pre_tokenizer.pre_tokenize_str(piece):
                    found |= {start + begin, start + end}
            start += len(piece)
        return sorted(found)

    @staticmethod
    def _refuse(reason: str) -> None:
        raise RenderError(reason)
