"""Chat templates render as Hugging Face's do, and what they raise is the caller's to read."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from pagoda_engine.model.location import locate
from pagoda_engine.text import template as template_module
from pagoda_engine.text.errors import TemplateError, TokenizerError
from pagoda_engine.text.model_text import load_text
from pagoda_engine.text.template import ChatTemplate
from pagoda_engine.text.tokenizer import Tokenizer
from tests.support.checkpoints import CHAT_TEMPLATE, tiny_checkpoint
from tests.support.gguf_files import tiny_gguf

MESSAGES = [
    {"role": "user", "content": "Hi <b> & 'you' 世界"},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "Go on"},
]
TOOLS = [{"type": "function", "function": {"name": "find", "description": "Grüße <x>", "parameters": {"a": [1, 2]}}}]
FEATURES = """
{%- if tools %}
    {{- tools | tojson }}|{{ tools | tojson(indent=2) }}
{%- endif %}
{% for message in messages %}
    {% if message.role == 'assistant' %}
        {% generation %}{{ message['content'] }}{% endgeneration %}

        {% continue %}
    {% endif %}
    {% if loop.index > 2 %}
        {% break %}
    {% endif %}
  {{ bos_token }}{{ message.content | trim }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}>>{% endif %}{{ mood | default('calm') }}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_text(locate(path=folder)).tokenizer


@pytest.mark.parametrize("source", [CHAT_TEMPLATE, FEATURES])
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("generate", [True, False])
def test_rendering_equals_transformers(
    folder: Path, tokenizer: Tokenizer, source: str, tools: Any, generate: bool
) -> None:
    oracle = transformers.AutoTokenizer.from_pretrained(folder)
    expected = oracle.apply_chat_template(
        MESSAGES, chat_template=source, tools=tools, add_generation_prompt=generate, tokenize=False, mood="glad"
    )
    ours = ChatTemplate(source, tokenizer)
    assert ours.render(MESSAGES, tools=tools, add_generation_prompt=generate, mood="glad") == expected


def test_a_template_comes_from_gguf_and_from_each_place_in_a_folder(tmp_path: Path) -> None:
    rendered = load_text(locate(path=tiny_gguf(tmp_path))).template.render(MESSAGES)
    assert rendered.endswith("<|im_start|>user\nGo on<|im_end|>\n<|im_start|>assistant\n")
    folder = tiny_checkpoint(tmp_path)
    assert load_text(locate(path=folder)).template.render(MESSAGES) == rendered
    settings = folder / "tokenizer_config.json"
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "named"}]
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": named}))
    assert load_text(locate(path=folder)).template.render(MESSAGES) == "named"
    (folder / "chat_template.jinja").write_text("from a file")
    assert load_text(locate(path=folder)).template.render(MESSAGES) == "from a file"


def test_without_a_template_chat_is_refused_and_says_what_works(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(None, tokenizer)
    assert not template.available
    with pytest.raises(TemplateError, match="use /v1/completions"):
        template.render(MESSAGES)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[9].content }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages.append(1) }}",  # immutable
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",  # sandboxed
    ],
)
def test_what_a_template_raises_is_a_template_error(tokenizer: Tokenizer, source: str) -> None:
    with pytest.raises(TemplateError, match="cannot render these messages: "):
        ChatTemplate(source, tokenizer).render(MESSAGES)


def test_output_without_end_is_cut_off(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = "{% for a in range(1000) %}{% for b in range(1000) %}xxxxxxxxxx{{ a }}{% endfor %}{% endfor %}"
    monkeypatch.setattr(template_module, "MAX_CHARACTERS", 10_000)
    with pytest.raises(TemplateError, match="longer than 10000 characters"):
        ChatTemplate(endless, tokenizer).render(MESSAGES)


def test_a_broken_template_is_the_models_fault(tokenizer: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match="not valid"):
        ChatTemplate("{% if %}", tokenizer)


def test_a_template_that_reads_the_clock_says_so(tokenizer: Tokenizer) -> None:
    dated = ChatTemplate("{{ strftime_now('%d %b %Y') }}", tokenizer, now=lambda: datetime.datetime(2026, 11, 29))
    assert dated.reads_clock
    assert dated.render([]) == "29 Nov 2026"
    assert not ChatTemplate(CHAT_TEMPLATE, tokenizer).reads_clock
    assert not ChatTemplate(None, tokenizer).reads_clock


def test_the_digest_sees_template_and_tokenizer(tmp_path: Path, tokenizer: Tokenizer) -> None:
    digest = ChatTemplate(CHAT_TEMPLATE, tokenizer).digest
    assert len(digest) == 16
    assert ChatTemplate(CHAT_TEMPLATE, tokenizer).digest == digest
    assert ChatTemplate(CHAT_TEMPLATE + " ", tokenizer).digest != digest
    other = load_text(locate(path=tiny_gguf(tmp_path, tokenizer={"pre": "gpt-2"}))).tokenizer
    assert ChatTemplate(CHAT_TEMPLATE, other).digest != digest
