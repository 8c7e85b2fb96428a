import json

import pytest

from pagoda_engine.serving.errors import InvalidRequestError, UnknownModelError
from pagoda_engine.serving.fields import parse_json_object
from pagoda_engine.serving.messages import ordered
from pagoda_engine.serving.openai import ChatRequest, CompletionRequest, parse_chat, parse_completion

MODELS = ("tiny",)
HELLO = [{"role": "user", "content": "hello"}]


def chat(**fields: object) -> ChatRequest:
    return parse_chat({"model": "tiny", "messages": HELLO, **fields}, MODELS)


def completion(**fields: object) -> CompletionRequest:
    return parse_completion({"model": "tiny", "prompt": "hello", **fields}, MODELS)


def test_defaults_are_openais() -> None:
    decoding, delivery = chat().decoding, chat().delivery
    assert (decoding.max_tokens, decoding.temperature, decoding.top_p, decoding.top_k) == (None, 1.0, 1.0, 0)
    assert (decoding.seed, decoding.stops, decoding.num_choices, decoding.min_tokens) == (None, (), 1, 0)
    assert not delivery.stream
    assert not decoding.ignore_eos
    assert completion().decoding == decoding


def test_null_is_the_same_as_absent() -> None:
    assert chat(temperature=None, stop=None, tools=None, stream_options=None, logprobs=None, user=None) == chat()


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [*HELLO, {"role": "user", "content": [{"type": "image_url"}]}]}, "messages[1].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": "x", "mood": "good"}]}, "messages[0].mood"),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content"),
        ({"model": None}, "model"),
        ({"model": 5}, "model"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_completion_tokens": 5, "max_tokens": 6}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": False}, "temperature"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"seed": 0.5}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"stop": 7}, "stop"),
        ({"stop": ["a", 7]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": {"speed": 1}}, "stream_options.speed"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0]"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": -1}, "frequency_penalty"),
        ({"store": True}, "store"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"cache_salt": "x"}, "cache_salt"),
    ],
)
def test_a_wrong_chat_field_is_refused_by_name(fields: dict[str, object], name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        chat(**fields)
    assert caught.value.param == name
    assert name in caught.value.message
    json.dumps(caught.value.body())


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": ["a", 5]}, "prompt[1]"),
        ({"prompt": [5, "a"]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": ["a"] * 10, "n": 8}, "prompt"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 0}, "logprobs"),
        ({"messages": HELLO}, "messages"),
    ],
)
def test_a_wrong_completion_field_is_refused_by_name(fields: dict[str, object], name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        completion(**fields)
    assert caught.value.param == name


def test_fields_that_ask_for_nothing_are_accepted() -> None:
    assert (
        chat(presence_penalty=0, frequency_penalty=0.0, logit_bias={}, logprobs=False, n=1, metadata={"a": "b"})
        == chat()
    )
    assert chat(response_format={"type": "text"}, tool_choice="auto", store=False, top_k=-1) == chat()
    assert completion(echo=False, best_of=1, repetition_penalty=1.0) == completion()


def test_string_and_parts_are_the_same_message() -> None:
    parts = [{"type": "text", "text": "hello"}]
    assert chat(messages=[{"role": "user", "content": parts}]) == chat()


def test_what_a_client_sends_back_from_an_answer_is_accepted() -> None:
    answer = {
        "role": "assistant",
        "content": "hi",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "tool_calls": None,
    }
    assert chat(messages=[*HELLO, answer, *HELLO]).messages[1] == {"role": "assistant", "content": "hi"}


def test_prompts_come_as_string_ids_or_lists_of_both() -> None:
    assert completion(prompt="a").prompts == ["a"]
    assert completion(prompt=[1, 2]).prompts == [[1, 2]]
    assert completion(prompt=["a", "b"]).prompts == ["a", "b"]
    assert completion(prompt=[[1], [2]]).prompts == [[1], [2]]


def test_an_unknown_model_is_404() -> None:
    with pytest.raises(UnknownModelError) as caught:
        chat(model="other")
    assert caught.value.status == 404
    assert caught.value.code == "model_not_found"


def test_key_order_of_tools_does_not_reach_the_template() -> None:
    one = {"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}
    other = {"function": {"parameters": {"a": 2, "b": 1}, "name": "f"}, "type": "function"}
    assert json.dumps(ordered(one)) == json.dumps(ordered(other)) == json.dumps(chat(tools=[other]).tools[0])  # type: ignore[index]


@pytest.mark.parametrize(
    "data",
    [
        b"\xff{}",
        b"{",
        b"[]",
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": 1e999}',
        b'{"prompt": "\\ud800"}',
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"n": ' + b"1" * 5000 + b"}",
    ],
)
def test_a_body_that_is_no_plain_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        parse_json_object(data)


def test_whole_surrogate_pairs_are_fine() -> None:
    assert parse_json_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\N{GRINNING FACE}"}
