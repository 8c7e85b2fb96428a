"""Digests of requests that begin with a registered public text, against a stream built by hand: where they cross."""

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_protocol.digests import DigestPoint, public_text_of_chat, public_text_of_prompt, text_points
from tests.protocol.test_digests import (
    GOLDEN_CHAT,
    KEY,
    SCOPE,
    TEMPLATE,
    bodies,
    encode,
    frozen,
    head_by_hand,
    letters,
    points,
    points_by_hand,
    stream_by_hand,
)


def shared_by_hand(found, stream):
    """Mark the points of `found` that lie before the end of the stream's crossing."""
    crossing = stream.index(b"\xfc")
    end = stream.index(b"\xff", crossing) + 1
    return [replace(point, is_shared=point.position <= end) for point in found]


def crossing_text_by_hand(scope, prompt, public, key=KEY):
    """The points of a prompt that crosses behind `public`, read off the whole stream."""
    data, size = encode(prompt), len(encode(public))
    mark = b"\xfc" + encode(scope) + b"\xff"
    head = head_by_hand(b"text", "shared", "m", b"", b"\xf8")
    stream = head + data[:size] + mark + data[size:] + b"\xff\xfe"
    crossing, content_end = len(head) + size, len(stream) - 2
    found = []
    for position in sorted({*range(512, len(stream) + 1, 512), crossing, len(stream)}):
        content = None
        if len(head) < position <= crossing:
            content = position - len(head)
        elif crossing + len(mark) < position <= content_end:
            content = position - len(head) - len(mark)
        is_end = position == len(stream)
        digest = hashlib.blake2b(stream[:position], key=key, digest_size=16).digest()
        is_shared = position <= crossing + len(mark)
        found.append(DigestPoint(digest, position, int(is_end), 0 if is_end else content, is_shared))
    return found


SYSTEM = {"role": "system", "content": "You are a pagoda. " * 40}
PUBLIC_CHAT = {"model": "m", "messages": [SYSTEM, {"role": "user", "content": "塔? " * 100}]}


def test_the_points_of_a_chat_that_begins_in_public_equal_those_made_by_hand_and_their_frozen_bytes():
    found = points(PUBLIC_CHAT, public=("other", SYSTEM["content"]))
    stream, spans = stream_by_hand(SCOPE, PUBLIC_CHAT, TEMPLATE, is_public=True)
    assert found == shared_by_hand(points_by_hand(stream, spans), stream)
    assert [point.is_shared for point in found] == [True, True, False, False]
    assert frozen(found) == [
        ("256ba6832ea851bcf8cd207143d8ea72", 512, 0, 448),
        ("46a2f89bcb96138971df4bde92f32554", 786, 1, 0),
        ("d05c64f282fdbb3e3a6f0891f21f81fe", 1024, 1, 216),
        ("fcb1e1d1b1dfe0d4af81460fb09a3e7f", 1310, 2, 0),
    ]


def test_the_points_of_a_prompt_that_begins_in_public_equal_those_made_by_hand_and_their_frozen_bytes():
    public = "Once upon a time " * 40
    found = text_points(KEY, SCOPE, "m", public + "there was 塔. " * 40, public)
    assert found == crossing_text_by_hand(SCOPE, public + "there was 塔. " * 40, public)
    assert [point.is_shared for point in found] == [True, True, False, False]
    assert frozen(found) == [
        ("555be88d232e7b6d0bd1bfc5fd7e42d5", 512, 0, 492),
        ("5c9fa10f0c06cc09b6c17a0ad35df96e", 700, 0, 680),
        ("e9a540fee272965780e95499edba1bf2", 1024, 0, 991),
        ("b70ab5b2a90ce9a821b84a74c0e8346d", 1315, 1, 0),
    ]


@given(st.text(min_size=1, max_size=900), st.text(max_size=600), letters)
def test_the_points_of_any_prompt_that_begins_in_public_equal_those_made_by_hand(public, rest, scope):
    assert text_points(KEY, scope, "m", public + rest, public) == crossing_text_by_hand(scope, public + rest, public)


@given(bodies, st.integers(1, 1600), letters)
def test_the_points_of_any_chat_that_begins_in_public_equal_those_made_by_hand(body, length, scope):
    public = "p" * length
    body = {"model": body.get("model", ""), "messages": [{"role": "system", "content": public}, *body["messages"]]}
    stream, spans = stream_by_hand(scope, body, TEMPLATE, is_public=True)
    expected = shared_by_hand(points_by_hand(stream, spans), stream)
    assert points(body, scope=scope, public=(public,)) == expected


def test_two_tenants_share_the_digests_of_what_is_public_and_no_other():
    public = (SYSTEM["content"],)
    acme, other = (points(PUBLIC_CHAT, scope=scope, public=public) for scope in ("tenant:acme", "tenant:other"))
    assert [point.digest for point in acme if point.is_shared] == [point.digest for point in other if point.is_shared]
    assert not {p.digest for p in acme if not p.is_shared} & {p.digest for p in other if not p.is_shared}


def test_a_registered_text_changes_no_byte_of_a_request_that_does_not_begin_with_it():
    assert points(GOLDEN_CHAT, public=("You are", "塔")) == points(GOLDEN_CHAT)
    assert points({"model": "m", "prompt": "Once"}, public=("Twice", "Once upon")) == text_points(
        KEY, SCOPE, "m", "Once"
    )


@pytest.mark.parametrize(
    "change",
    [{"tools": []}, {"response_format": {"type": "text"}}, {"chat_template_kwargs": {}},
     {"messages": [SYSTEM | {"name": "a"}]}, {"messages": [SYSTEM | {"cache_control": {}}]},
     {"messages": [SYSTEM | {"role": "user"}]}, {"messages": [SYSTEM | {"content": SYSTEM["content"] + " "}]},
     {"messages": [SYSTEM | {"content": None}]}, {"messages": []}, {"messages": [3]}, {"messages": None}],
)  # fmt: skip
def test_a_chat_with_anything_beside_the_text_alone_is_not_public(change):
    assert public_text_of_chat(PUBLIC_CHAT, (SYSTEM["content"],)) == SYSTEM["content"]
    assert public_text_of_chat(PUBLIC_CHAT | change, (SYSTEM["content"],)) is None


def test_a_chat_is_public_in_either_form_of_its_content_and_with_fields_that_are_null():
    parts = SYSTEM | {"content": [{"type": "text", "text": SYSTEM["content"]}], "name": None}
    assert public_text_of_chat({"messages": [parts], "tools": None}, (SYSTEM["content"],)) == SYSTEM["content"]


def test_of_the_registered_texts_a_prompt_begins_with_the_longest_counts():
    assert (
        public_text_of_prompt("Once upon a time", ("Once", "Once upon", "upon", "Once upon a time there"))
        == "Once upon"
    )
    assert public_text_of_prompt("Twice", ("Once",)) is None
