import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda_engine.serving.coverage import MAX_RENDERINGS, Chat, Claim, Coverage, RenderError
from pagoda_engine.serving.language import ModelLanguage
from pagoda_protocol.digests import DigestPoint, request_points
from tests.engine.serving.languages import CHAT_TEMPLATE, CLOCK, FORGETFUL, MOVING, TRIMMING, language

KEY, TEMPLATE_DIGEST = bytes(32), bytes(16)
BLOCK = 4
NORMAL = "normal"


@pytest.fixture(scope="module")
def languages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelLanguage]:
    folder = tmp_path_factory.mktemp("tokenizer")
    templates = {NORMAL: CHAT_TEMPLATE, "trimming": TRIMMING, "forgetful": FORGETFUL, "moving": MOVING}
    return {name: language(folder, template) for name, template in templates.items()}


@pytest.fixture(scope="module")
def normal(languages: dict[str, ModelLanguage]) -> ModelLanguage:
    return languages[NORMAL]


def render(language: ModelLanguage, messages: list[Any], add_generation_prompt: bool) -> str:
    return language.render(messages, add_generation_prompt, None, {})


def tokens_of(language: ModelLanguage, messages: list[Any], add_generation_prompt: bool = True) -> Sequence[int]:
    return language.encode(render(language, messages, add_generation_prompt), is_rendered=True)[0]


def ids(language: ModelLanguage, text: str) -> list[int]:
    return list(language.encode(text, is_rendered=True)[0])


# Pieces whose tokens depend on what follows: words, white space, digits, half special tokens, wide characters.
PIECES = (
    "the", " the", " ", "  ", "\n", "\n\n", "12", "3", "<|im_", "end|>", "<|im_end|>", "<t>", "</t>",
    "é", "e\u0301", "你好", "😀", "!", "in", "'l", "l", "，", "。", ".", ",\n", "?",
)  # fmt: skip
RANDOM = st.integers(0, 2**32).map(random.Random)


def coverage(language: ModelLanguage, block_tokens: int = BLOCK) -> Coverage:
    return Coverage(language, KEY, TEMPLATE_DIGEST, block_tokens)


def body_of(contents: list[str], system: bool) -> dict[str, Any]:
    roles = itertools.chain(["system"] if system else [], itertools.cycle(["user", "assistant"]))
    messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]
    return {"model": "tiny", "messages": messages}


def claims_of(
    language: ModelLanguage, body: dict[str, Any], reply: str | None, block_tokens: int = BLOCK
) -> list[Claim]:
    """Claim for a request whose prompt was computed and whose answer was tokenized canonically."""
    computed = [*tokens_of(language, body["messages"]), *ids(language, reply or "")]
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


@pytest.mark.parametrize("template", [NORMAL, "trimming", "forgetful", "moving"])
@settings(max_examples=50, deadline=None)
@given(chance=RANDOM)
def test_what_a_shared_digest_claims_is_a_common_prefix(
    languages: dict[str, ModelLanguage], template: str, chance: random.Random
) -> None:
    language = languages[template]
    body = body_of([content(chance) for _ in range(chance.choice([1, 2, 3, 4, 5]))], system=chance.random() < 0.5)
    reply = content(chance)
    whole = [*body["messages"], {"role": "assistant", "content": reply}]
    try:
        claims = claims_of(language, body, reply, block_tokens=1)
    except RenderError:
        return
    mine = tokens_of(language, whole, add_generation_prompt=False)
    covered = {claim.digest: claim.tokens for claim in claims}
    for point in request_points(KEY, "s", TEMPLATE_DIGEST, {**body, "messages": whole}):
        for messages in others_of(chance, whole, point) if point.digest in covered else ():
            other = {**body, "messages": messages}
            if point.digest in digests_of(other):
                tokens = tokens_of(language, messages)
                assert tokens[: covered[point.digest]] == mine[: covered[point.digest]]


@settings(max_examples=50, deadline=None)
@given(chance=RANDOM)
def test_what_a_shared_digest_of_a_text_claims_is_a_common_prefix(normal: ModelLanguage, chance: random.Random) -> None:
    prompt, reply = content(chance), content(chance)
    computed = [*ids(normal, prompt), *ids(normal, reply)]
    claims = coverage(normal, 1).of_text("s", "tiny", prompt, reply, computed)
    covered = {claim.digest: claim.tokens for claim in claims}
    for point in request_points(KEY, "s", TEMPLATE_DIGEST, {"model": "tiny", "prompt": prompt + reply}):
        shared = (prompt + reply).encode()[: point.content_bytes or 0].decode(errors="ignore")
        for tail in PIECES if point.digest in covered else ():
            if point.digest in digests_of({"model": "tiny", "prompt": shared + tail}):
                tokens = ids(normal, shared + tail)
                assert tokens[: covered[point.digest]] == computed[: covered[point.digest]]


def test_a_next_turn_finds_nearly_all_of_what_the_last_one_computed(normal: ModelLanguage) -> None:
    body = body_of(["You are kind. " * 40, "Tell me of the sea. " * 20], system=True)
    reply = "The sea is wide and the water is salt. " * 5
    claims = claims_of(normal, body, reply, block_tokens=16)
    following = {
        **body,
        "messages": [*body["messages"], {"role": "assistant", "content": reply}, {"role": "user", "content": "More"}],
    }
    found = [claim.tokens for claim in claims if claim.digest in digests_of(following)]
    computed = len(ids(normal, render(normal, body["messages"], True) + reply))
    assert max(found) >= computed - 2 * 16


@pytest.mark.parametrize(
    "sentence",
    [
        "The ship went over the water in the morning of the third day. ",
        "这艘船在第三天的早晨驶过了水面。船上的人都很高兴，因为他们看见了陆地。",
        '{"name": "x", "values": [1, 2, 3], "inner": {"a": true}},\n',
    ],
)
def test_two_questions_on_one_document_share_most_of_it(normal: ModelLanguage, sentence: str) -> None:
    document = sentence * 200
    asked, other = body_of([document + "Who sailed?"], False), body_of([document + "When was it?"], False)
    found = [claim.tokens for claim in claims_of(normal, asked, "Nobody") if claim.digest in digests_of(other)]
    assert max(found) >= 0.95 * len(ids(normal, document))


def test_an_answer_that_was_not_computed_as_it_reads_counts_up_to_the_first_difference(normal: ModelLanguage) -> None:
    body = body_of(["hello there " * 30], False)
    prompt = tokens_of(normal, body["messages"])
    letters = [ids(normal, letter)[0] for letter in "the the the the the the"]
    chat = Chat(body, body["messages"], None, {}, "the the the the the the")
    claims = coverage(normal).of_chat("s", chat, [*prompt, *letters])
    assert 0 < max(claim.tokens for claim in claims) <= len(prompt)


def test_a_template_that_reads_the_clock_gets_no_claims(tmp_path: Path) -> None:
    clock = language(tmp_path, CLOCK)
    assert claims_of(clock, body_of(["hello " * 200], False), "hi") == []


def test_a_template_that_rewrites_earlier_turns_claims_none_of_them(languages: dict[str, ModelLanguage]) -> None:
    claims = claims_of(languages["moving"], body_of(["be kind " * 90, "hello " * 90], True), "hi")
    assert all(claim.tokens <= len(ids(languages["moving"], "[user]")) for claim in claims)


def test_a_long_conversation_costs_a_bounded_number_of_renderings(
    normal: ModelLanguage, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = body_of([f"turn {number} of the talk" for number in range(1001)], False)
    prompt = tokens_of(normal, body["messages"])
    calls: list[int] = []
    monkeypatch.setattr(
        normal, "render", lambda *arguments: calls.append(1) or ModelLanguage.render(normal, *arguments)
    )
    claims = coverage(normal).of_chat("s", Chat(body, body["messages"], None, {}, "yes"), prompt)
    assert len(calls) <= MAX_RENDERINGS + 2
    assert max(claim.tokens for claim in claims) >= len(prompt) - 4 * BLOCK


def test_token_prompts_claim_exactly_what_lies_before_a_point(normal: ModelLanguage) -> None:
    prompt = list(range(300))
    claims = coverage(normal).of_tokens("s", "tiny", prompt, [*prompt, 7, 7])
    assert claims[-1].tokens == 300
    other = digests_of({"model": "tiny", "prompt": [*prompt[:200], 9]})
    shared = [claim.tokens for claim in claims if claim.digest in other]
    assert shared
    assert max(shared) <= 200


def test_claims_grow_and_are_whole_blocks(normal: ModelLanguage) -> None:
    claims = claims_of(normal, body_of(["hello " * 400, "yes " * 90, "no " * 80], False), "hi")
    tokens = [claim.tokens for claim in claims]
    assert tokens == sorted(set(tokens))
    assert all(count % BLOCK == 0 for count in tokens)
