"""Chat templates of every temper, over the tiny checkpoint's tokenizer."""

import json
from pathlib import Path

from pagoda_engine.model.location import ModelLocation
from pagoda_engine.serving.language import ModelLanguage
from pagoda_engine.text.model_text import ModelText
from pagoda_engine.text.template import ChatTemplate
from pagoda_engine.text.tokenizer import load_tokenizer
from tests.support.checkpoints import CHAT_TEMPLATE, tokenizer_dict

# Trims contents and wants a user to begin.
TRIMMING = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' and loop.first %}{{ raise_exception('no first word') }}{% endif %}"
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
CLOCK = "{{ strftime_now('%d') }}" + CHAT_TEMPLATE
TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}" + CHAT_TEMPLATE


def language(folder: Path, template: str = CHAT_TEMPLATE) -> ModelLanguage:
    """Return the tiny checkpoint's tokenizer with `template`; only a tokenizer.json is written under `folder`."""
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_dict()), encoding="utf-8")
    tokenizer = load_tokenizer(ModelLocation(folder))
    return ModelLanguage(ModelText(tokenizer, ChatTemplate(template, tokenizer)))
