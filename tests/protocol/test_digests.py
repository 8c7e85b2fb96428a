"""Digests against a stream built by hand, and what routing relies on.

`stream_by_hand` writes the whole canonical stream as one byte string; `points_by_hand` then reads off it where a digest
is due and what lies before it. The code under test does both incrementally.
"""

import hashlib
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_protocol.digests import (
    DigestError,
    DigestPoint,
    chat_points,
    content_text,
    request_points,
    text_points,
    token_points,
)

KEY = bytes(range(32))
TEMPLATE = bytes(range(16))
SCOPE = "tenant:acme"


def head_by_hand(kind, scope, model, template, head):
    fields = [b"1", encode(scope), encode(model), kind, template.hex().encode(), head]
    return b"".join(field + b"\xff" for field in fields) + b"\xfd"


def encode(text):
    return b"\xf8" if text is None else text.encode("utf-8", "surrogatepass")


def dump(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "backslashreplace"
    )


def plain(content):
    return "\n".join(part["text"] for part in content) if isinstance(content, list) else content


def stream_by_hand(scope, body, template, is_public=False):
    """Return the stream, and for each message where its content starts, where that ends, and where the message ends.

    `is_public`: the first message is, so that the stream crosses behind it.
    """
    head = {
        name: body[name] for name in ("tools", "response_format", "chat_template_kwargs") if body.get(name) is not None
    }
    stream, spans = (
        head_by_hand(b"chat", "shared" if is_public else scope, body.get("model", ""), template, dump(head)),
        [],
    )
    for message in body["messages"]:
        others = {
            key: value for key, value in message.items() if key not in ("role", "name", "content") and value is not None
        }
        stream += encode(message.get("role")) + b"\xff" + encode(message.get("name")) + b"\xff"
        stream += (dump(others) if others else b"\xf8") + b"\xff"
        content = plain(message.get("content"))
        start = len(stream)
        stream += encode(content)
        stop = start if content is None else len(stream)
        stream += b"\xff\xfe"
        spans.append((start, stop, len(stream)))
        if is_public and len(spans) == 1:
            stream += b"\xfc" + encode(scope) + b"\xff"
    return stream, spans


def points_by_hand(stream, spans, key=KEY):
    ends = [end for _, _, end in spans]
    points = []
    for position in sorted({*range(512, len(stream) + 1, 512), *ends}):
        done = sum(end <= position for end in ends)
        content_bytes = None
        if position in ends:
            content_bytes = 0
        elif done < len(spans) and spans[done][0] < position <= spans[done][1]:
            content_bytes = position - spans[done][0]
        digest = hashlib.blake2b(stream[:position], key=key, digest_size=16).digest()
        points.append(DigestPoint(digest, position, done, content_bytes))
    return points


def points(body, key=KEY, scope=SCOPE, template=TEMPLATE, public=()):
    return request_points(key, scope, template, body, public)


# Few letters, those that could be mistaken for the format's own, so that collisions are likely if they are possible.
letters = st.text(
    st.sampled_from(
        ["a", "\\", "u", "d", "8", "0", '"', "{", "}", "\n", "\x00", "ÿ", "þ", "ø", "塔", "\ud800", "\udc00"]
    ),
    max_size=8,
)
contents = st.none() | letters | st.text(max_size=300) | st.integers(440, 1600).map("x".__mul__)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": contents},
    optional={
        "name": st.none() | letters,
        "tool_call_id": st.none() | letters,
        "tool_calls": st.lists(letters, max_size=2),
    },
)
bodies = st.fixed_dictionaries(
    {"messages": st.lists(messages, min_size=1, max_size=4)},
    optional={
        "model": letters,
        "tools": st.none() | st.lists(letters, max_size=2),
        "response_format": st.dictionaries(letters, letters, max_size=2),
        "chat_template_kwargs": st.dictionaries(letters, letters, max_size=2),
        "temperature": st.just(0.5),
    },
)

GOLDEN_CHAT = {
    "model": "smollm2",
    "temperature": 0.7,
    "tools": [{"type": "function", "function": {"name": "größe"}}],
    "messages": [
        {"role": "system", "content": "You are a pagoda. " * 40},
        {"role": "user", "name": "zoë", "content": "塔?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
    ],
}


def frozen(found):
    return [(point.digest.hex(), point.position, point.num_messages, point.content_bytes) for point in found]


def test_the_points_of_a_chat_equal_those_made_by_hand_and_their_frozen_bytes():
    assert points(GOLDEN_CHAT) == points_by_hand(*stream_by_hand(SCOPE, GOLDEN_CHAT, TEMPLATE))
    assert frozen(points(GOLDEN_CHAT)) == [
        ("47b72bfee0e7ab6666dac163436074ac", 512, 0, 378),
        ("c8086b272fab36d248c6d703cad80f52", 856, 1, 0),
        ("7b8d371c5161110b64aa21f8f3cdb7fd", 874, 2, 0),
        ("688844b325bfa7c8e8f358edbe828da8", 917, 3, 0),
    ]


def test_the_points_of_a_text_prompt_equal_those_made_by_hand_and_their_frozen_bytes():
    prompt = "Once upon a time " * 40
    head = head_by_hand(b"text", SCOPE, "m", b"", b"\xf8")
    spans = [(len(head), len(head) + len(prompt), len(head) + len(prompt) + 2)]
    found = text_points(KEY, SCOPE, "m", prompt)
    assert found == points_by_hand(head + prompt.encode() + b"\xff\xfe", spans)
    assert frozen(found) == [
        ("dc2c6081aaf5be731dc380c19ebd3ead", 512, 0, 487),
        ("298cc644c41024c1a30a766f9b3b7000", 707, 1, 0),
    ]


def test_the_points_of_a_token_prompt_equal_those_made_by_hand_and_their_frozen_bytes():
    tokens = [0, 1, 254, 255, 2**32 - 1, *range(200)]
    data = b"".join(struct.pack("<I", token) for token in tokens)
    head = head_by_hand(b"tokens", SCOPE, "m", b"", b"\xf8")
    found = token_points(KEY, SCOPE, "m", tokens)
    assert found == points_by_hand(
        head + data + b"\xfe", [(len(head), len(head) + len(data), len(head) + len(data) + 1)]
    )
    assert frozen(found) == [
        ("680886bf492e42916642090e5f828a12", 512, 0, 485),
        ("069381cee77a79d6329a6f588cee43b5", 848, 1, 0),
    ]


@given(bodies)
def test_the_points_of_any_chat_equal_those_made_by_hand(body):
    assert points(body) == points_by_hand(*stream_by_hand(SCOPE, body, TEMPLATE))


@given(bodies, st.lists(messages, min_size=1, max_size=3))
def test_a_conversation_that_goes_on_keeps_every_earlier_point(body, more):
    earlier = points(body)
    assert points(body | {"messages": body["messages"] + more})[: len(earlier)] == earlier


def identity(body):
    """What two requests may differ in without a different stream: null is absent, parts are their text."""
    head = {key: value for key, value in body.items() if key not in ("messages", "temperature") and value is not None}
    said = [
        {key: plain(value) if key == "content" else value for key, value in message.items() if value is not None}
        for message in body["messages"]
    ]
    return {"model": "", **head}, said


@given(bodies, bodies)
def test_different_requests_have_different_streams(one, other):
    assert (points(one)[-1] == points(other)[-1]) == (identity(one) == identity(other))


@given(bodies, st.data())
def test_a_request_that_differs_in_one_field_has_another_stream(body, data):
    index = data.draw(st.integers(0, len(body["messages"]) - 1))
    field = data.draw(st.sampled_from(["role", "name", "content", "tool_call_id", "unheard_of"]))
    changed = [*body["messages"]]
    changed[index] = changed[index] | {field: data.draw(letters)}
    other = body | {"messages": changed}
    assert (points(body)[-1] == points(other)[-1]) == (identity(body) == identity(other))


@given(bodies)
def test_no_byte_of_a_text_field_can_end_it(body):
    stream, spans = stream_by_hand(SCOPE, body, TEMPLATE)
    ends = stream.count(b"\xff") + stream.count(b"\xfe") + stream.count(b"\xfd")
    assert ends == 6 + 1 + len(spans) * (4 + 1)


@given(st.lists(st.text(max_size=400), max_size=4))
def test_a_content_of_parts_has_the_points_of_the_string_it_spells(texts):
    parts = [{"type": "text", "text": text} for text in texts]
    as_parts, as_string = (
        {"messages": [{"role": "user", "content": content}]} for content in (parts, "\n".join(texts))
    )
    assert points(as_parts) == points(as_string)


def test_two_questions_on_one_document_of_20_kb_share_39_digests():
    document = "A pagoda has tiers. " * 1000
    one, other = (
        points({"messages": [{"role": "user", "content": document + question}]})
        for question in ("Why?", "How many are there?")
    )
    assert len({point.digest for point in one} & {point.digest for point in other}) == 39


@pytest.mark.parametrize(
    "other",
    [{"key": bytes(32)}, {"scope": "tenant:other"}, {"template": bytes(16)}, {"body": GOLDEN_CHAT | {"model": "other"}},
     {"body": GOLDEN_CHAT | {"tools": []}}, {"body": GOLDEN_CHAT | {"response_format": {"type": "json_object"}}},
     {"body": GOLDEN_CHAT | {"chat_template_kwargs": {"thinking": False}}}],
)  # fmt: skip
def test_whatever_can_change_earlier_text_leaves_nothing_shared(other):
    one = points(GOLDEN_CHAT)
    two = points(**{"body": GOLDEN_CHAT, **other})
    assert not {point.digest for point in one} & {point.digest for point in two}


def test_sampling_fields_change_nothing():
    assert points(GOLDEN_CHAT | {"temperature": 0, "stream": True, "max_tokens": 9}) == points(GOLDEN_CHAT)


def test_a_chat_a_text_and_a_token_prompt_share_nothing():
    found = [
        points({"model": "m", "messages": [{"role": "user", "content": "a" * 2000}]}, template=b""),
        text_points(KEY, SCOPE, "m", "a" * 2000),
        token_points(KEY, SCOPE, "m", list(b"a" * 2000)),
    ]
    digests = [point.digest for kind in found for point in kind]
    assert len(set(digests)) == len(digests)


def test_content_that_is_null_is_as_content_that_is_absent_and_differs_from_an_empty_one():
    absent, null, empty = (
        points({"messages": [{"role": "assistant", **content}]}) for content in ({}, {"content": None}, {"content": ""})
    )
    assert absent == null
    assert null[-1].digest != empty[-1].digest


@pytest.mark.parametrize("length", range(300, 520))
def test_a_boundary_beside_the_end_of_a_message_is_counted_on_the_right_side(length):
    body = {"messages": [{"role": "user", "content": "x" * length}, {"role": "assistant", "content": None}]}
    assert points(body) == points_by_hand(*stream_by_hand(SCOPE, body, TEMPLATE))


def test_a_lone_surrogate_differs_from_its_escape_written_out():
    surrogate, escape = (points({"messages": [{"role": "user", "content": text}]}) for text in ("\ud800", "\\ud800"))
    assert surrogate[-1].digest != escape[-1].digest


def test_a_completion_of_several_prompts_counts_the_first():
    assert points({"model": "m", "prompt": ["a", "b"]}) == points({"model": "m", "prompt": "a"})
    assert points({"model": "m", "prompt": [[1, 2], [3]]}) == points({"model": "m", "prompt": [1, 2]})


def test_a_body_and_its_messages_give_the_same_points_by_either_door():
    assert chat_points(KEY, SCOPE, TEMPLATE, GOLDEN_CHAT, GOLDEN_CHAT["messages"]) == points(GOLDEN_CHAT)


USER = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    "body",
    [{}, {"messages": None}, {"messages": "a"}, {"messages": ["a"]}, {"messages": [USER | {"content": 1}]},
     {"messages": [USER | {"content": [{"type": "image_url"}]}]}, {"messages": [USER | {"content": ["a"]}]},
     {"messages": [USER | {"role": 1}]}, {"messages": [USER | {"name": ["a"]}]}, {"messages": [USER], "model": 1},
     {"messages": [USER], "tools": [float("nan")]}, {"messages": [USER | {"weight": float("inf")}]},
     {"prompt": None}, {"prompt": []}, {"prompt": [[]]}, {"prompt": [1, "a"]}, {"prompt": [-1]}, {"prompt": [2**32]},
     {"prompt": [True]}, {"prompt": 1}, {"prompt": "a", "model": None}],
)  # fmt: skip
def test_a_request_without_a_canonical_stream_is_refused(body):
    with pytest.raises(DigestError):
        points(body)


def test_the_text_of_a_content_is_its_string_or_its_parts_on_lines():
    assert content_text(None) is None
    assert content_text("a") == "a"
    assert content_text([{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {}}]) == "a\nb"
