import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda_engine.serving.coverage import MAX_RENDERINGS, Chat, Claim, Coverage, RenderError
from pagoda_protocol.digests import DigestPoint, request_points
from tests.engine.serving.languages import TEMPLATES, TemplateLanguage

KEY, TEMPLATE_DIGEST = bytes(32), bytes(16)
BLOCK = 4
LANGUAGES = tuple(TemplateLanguage(template) for template in TEMPLATES)

# Pieces whose tokens depend on what follows: words, white space, digits, half special tokens, wide characters.
PIECES = (
    "the", " the", " ", "  ", "\n", "\n\n", "12", "3", "<|im_", "end|>", "<|im_end|>", "<t>", "</t>",
    "é", "你好", "😀", "!", "in", "'l", "l",
)  # fmt: skip
RANDOM = st.integers(0, 2**32).map(random.Random)


def coverage(language: TemplateLanguage, block_tokens: int = BLOCK) -> Coverage:
    return Coverage(language, KEY, TEMPLATE_DIGEST, block_tokens)


def body_of(contents: list[str], system: bool) -> dict[str, Any]:
    roles = itertools.chain(["system"] if system else [], itertools.cycle(["user", "assistant"]))
    messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]
    return {"model": "tiny", "messages": messages}


def claims_of(
    language: TemplateLanguage, body: dict[str, Any], reply: str | None, block_tokens: int = BLOCK
) -> list[Claim]:
    """Claim for a request whose prompt was computed and whose answer was tokenized canonically."""
    prompt = language.render(body["messages"], True)
    computed = language.encode(prompt)[0] + language.encode(reply or "")[0]
    chat = Chat(body, body["messages"], None, {}, reply)
    return coverage(language, block_tokens).of_chat("s", chat, computed)


def digests_of(body: dict[str, Any]) -> set[bytes]:
    return {point.digest for point in request_points(KEY, "s", TEMPLATE_DIGEST, body)}


def content(chance: random.Random) -> str:
    """Make a short content or one that several digests fall into."""
    return "".join(chance.choices(PIECES, k=chance.choice([1, 3, 6, 300])))


def others_of(chance: random.Random, messages: list[dict[str, Any]], point: DigestPoint) -> Iterator[list[Any]]:
    """Make conversations that share `point` with `messages` and go their own ways from there."""
    kept = messages[: point.num_messages]
    if not point.content_bytes:
        roles = ["assistant", "user"] if kept and kept[-1]["role"] == "user" else ["user", "assistant"]
        for count in range(3):
            yield [*kept, *({"role": role, "content": content(chance)} for role in roles[:count])]
        return
    message = messages[point.num_messages]
    shared = message["content"].encode()[: point.content_bytes].decode(errors="ignore")
    for tail in ("", *PIECES):
        following = [{"role": "user", "content": "so"}] if message["role"] == "assistant" else []
        yield [*kept, {**message, "content": shared + tail}, *following]


@pytest.mark.parametrize("language", LANGUAGES)
@settings(max_examples=150, deadline=None)
@given(chance=RANDOM)
def test_what_a_shared_digest_claims_is_a_common_prefix(language: TemplateLanguage, chance: random.Random) -> None:
    body = body_of([content(chance) for _ in range(chance.choice([1, 2, 3, 4, 5]))], system=chance.random() < 0.5)
    reply = content(chance)
    whole = [*body["messages"], {"role": "assistant", "content": reply}]
    try:
        claims = claims_of(language, body, reply, block_tokens=1)
    except RenderError:
        return
    mine = language.encode(language.render(whole, False))[0]
    covered = {claim.digest: claim.tokens for claim in claims}
    for point in request_points(KEY, "s", TEMPLATE_DIGEST, {**body, "messages": whole}):
        for messages in others_of(chance, whole, point) if point.digest in covered else ():
            other = {**body, "messages": messages}
            if point.digest in digests_of(other):
                tokens = language.encode(language.render(messages, True))[0]
                assert tokens[: covered[point.digest]] == mine[: covered[point.digest]]


@settings(max_examples=150, deadline=None)
@given(chance=RANDOM)
def test_what_a_shared_digest_of_a_text_claims_is_a_common_prefix(chance: random.Random) -> None:
    language = LANGUAGES[0]
    prompt, reply = content(chance), content(chance)
    computed = language.encode(prompt)[0] + language.encode(reply)[0]
    claims = coverage(language, 1).of_text("s", "tiny", prompt, reply, computed)
    covered = {claim.digest: claim.tokens for claim in claims}
    for point in request_points(KEY, "s", TEMPLATE_DIGEST, {"model": "tiny", "prompt": prompt + reply}):
        shared = (prompt + reply).encode()[: point.content_bytes or 0].decode(errors="ignore")
        for tail in PIECES if point.digest in covered else ():
            if point.digest in digests_of({"model": "tiny", "prompt": shared + tail}):
                tokens = language.encode(shared + tail)[0]
                assert tokens[: covered[point.digest]] == computed[: covered[point.digest]]


def test_a_next_turn_finds_nearly_all_of_what_the_last_one_computed() -> None:
    language = LANGUAGES[0]
    body = body_of(["You are kind. " * 40, "Tell me of the sea. " * 20], system=True)
    reply = "The sea is wide and the water is salt. " * 5
    claims = claims_of(language, body, reply, block_tokens=16)
    following = {
        **body,
        "messages": [*body["messages"], {"role": "assistant", "content": reply}, {"role": "user", "content": "More"}],
    }
    found = [claim.tokens for claim in claims if claim.digest in digests_of(following)]
    computed = len(language.encode(language.render(body["messages"], True) + reply)[0])
    assert max(found) >= computed - 2 * 16


def test_two_questions_on_one_document_share_most_of_it() -> None:
    language = LANGUAGES[0]
    document = "The ship went over the water in the morning of the third day. " * 200
    asked, other = body_of([document + "Who sailed?"], False), body_of([document + "When was it?"], False)
    found = [claim.tokens for claim in claims_of(language, asked, "Nobody") if claim.digest in digests_of(other)]
    assert max(found) >= 0.95 * len(language.encode(document)[0])


def test_an_answer_that_was_not_computed_as_it_reads_counts_up_to_the_first_difference() -> None:
    language = LANGUAGES[0]
    body = body_of(["hello there " * 30], False)
    prompt = language.encode(language.render(body["messages"], True))[0]
    letters = [language.encode(letter)[0][0] for letter in "the the the the the the"]
    chat = Chat(body, body["messages"], None, {}, "the the the the the the")
    claims = coverage(language).of_chat("s", chat, prompt + letters)
    assert 0 < max(claim.tokens for claim in claims) <= len(prompt)


def test_a_template_that_reads_the_clock_gets_no_claims() -> None:
    assert claims_of(TemplateLanguage(reads_clock=True), body_of(["hello " * 200], False), "hi") == []


def test_a_template_that_rewrites_earlier_turns_claims_none_of_them() -> None:
    claims = claims_of(TemplateLanguage(TEMPLATES[3]), body_of(["be kind " * 90, "hello " * 90], True), "hi")
    assert all(claim.tokens <= len(LANGUAGES[3].encode("[user]")[0]) for claim in claims)


def test_a_long_conversation_costs_a_bounded_number_of_renderings() -> None:
    language = TemplateLanguage()
    body = body_of([f"turn {number} of the talk" for number in range(1001)], False)
    prompt = language.encode(language.render(body["messages"], True))[0]
    language.num_renderings = 0
    claims = coverage(language).of_chat("s", Chat(body, body["messages"], None, {}, "yes"), prompt)
    assert language.num_renderings <= MAX_RENDERINGS + 2
    assert max(claim.tokens for claim in claims) >= len(prompt) - 4 * BLOCK


def test_token_prompts_claim_exactly_what_lies_before_a_point() -> None:
    prompt = list(range(300))
    claims = coverage(LANGUAGES[0]).of_tokens("s", "tiny", prompt, [*prompt, 7, 7])
    assert claims[-1].tokens == 300
    other = digests_of({"model": "tiny", "prompt": [*prompt[:200], 9]})
    shared = [claim.tokens for claim in claims if claim.digest in other]
    assert shared
    assert max(shared) <= 200


def test_claims_grow_and_are_whole_blocks() -> None:
    claims = claims_of(LANGUAGES[0], body_of(["hello " * 400, "yes " * 90, "no " * 80], False), "hi")
    tokens = [claim.tokens for claim in claims]
    assert tokens == sorted(set(tokens))
    assert all(count % BLOCK == 0 for count in tokens)
