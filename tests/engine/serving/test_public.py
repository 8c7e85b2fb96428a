"""Public texts: how much of a prompt they are, who shares its blocks, and that digests claim no more than is shared."""

import dataclasses
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda_engine.serving.auth import Caller, Callers
from pagoda_engine.serving.coverage import Chat, Coverage
from pagoda_engine.serving.keys import Keys
from pagoda_engine.serving.language import ModelLanguage
from pagoda_engine.serving.loading import Loaded
from pagoda_engine.serving.public import PublicTexts
from pagoda_engine.serving.reporter import digest_rows
from pagoda_protocol.digests import request_points
from pagoda_protocol.tenants import Tenants, key_hash, parse_tenants
from tests.engine.serving.conftest import Server, server_of
from tests.engine.serving.languages import CHAT_TEMPLATE, CLOCK, FORGETFUL, MOVING, TRIMMING, language

KEY, TEMPLATE_DIGEST = bytes(32), bytes(16)
NAMES = ("acme", "bolt")
PIECES = ("the", " the", " ", "\n\n", "12", "<|im_", "end|>", "é", "你好", "!", "in", ". ")
RANDOM = st.integers(0, 2**32).map(random.Random)


@pytest.fixture(scope="module")
def tenants() -> Tenants:
    entries = [{"name": name, "keyHashes": [key_hash(f"key-{name}")]} for name in NAMES]
    return parse_tenants(json.dumps({"tenants": entries}))


@pytest.fixture(scope="module")
def languages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelLanguage]:
    folder = tmp_path_factory.mktemp("tokenizer")
    templates = {"normal": CHAT_TEMPLATE, "trimming": TRIMMING, "forgetful": FORGETFUL, "moving": MOVING}
    return {name: language(folder, template) for name, template in (templates | {"clock": CLOCK}).items()}


class Pool:
    """Two tenants on one model: what each one's request is chained from, and what its digests stand for."""

    def __init__(self, spoken: ModelLanguage, tenants: Tenants, texts: list[str], block_tokens: int) -> None:
        self.language = spoken
        self.texts = texts
        self.block_tokens = block_tokens
        self.callers = Callers(bytes(32), bytes(32), lambda: tenants, block_tokens)
        self.public = PublicTexts(spoken, lambda: self.texts)
        self.coverage = Coverage(spoken, KEY, TEMPLATE_DIGEST, block_tokens)

    def caller(self, name: str) -> Caller:
        return self.callers.identify(f"Bearer key-{name}")

    def rows(self, name: str, body: dict[str, Any]) -> dict[bytes, tuple[int, bytes]]:
        """Digest → (tokens, address), as reported after the prompt of `body` was computed."""
        caller, prompt, opening = self.caller(name), self.prompt(body), None
        if "messages" in body:
            opening = self.public.of_chat(body, prompt)
            chat = Chat(body, body["messages"], None, {}, None, opening)
            claims = self.coverage.of_chat(caller.scope, chat, prompt)
        else:
            opening = self.public.of_prompt(body["prompt"], prompt)
            claims = self.coverage.of_text(caller.scope, "tiny", body["prompt"], "", prompt, opening)
        chain = self.callers.chain(caller, prompt, opening.num_tokens)
        return {row.digest: (row.tokens, row.address) for row in digest_rows(claims, chain, prompt, self.block_tokens)}

    def addresses(self, name: str, body: dict[str, Any]) -> list[bytes]:
        prompt = self.prompt(body)
        find = self.public.of_chat if "messages" in body else self.public.of_prompt
        opening = find(body if "messages" in body else body["prompt"], prompt)  # type: ignore[operator]
        return self.callers.chain(self.caller(name), prompt, opening.num_tokens).addresses(prompt, self.block_tokens)

    def digests(self, name: str, body: dict[str, Any]) -> set[bytes]:
        points = request_points(KEY, self.caller(name).scope, TEMPLATE_DIGEST, body, self.texts)
        return {point.digest for point in points}

    def prompt(self, body: dict[str, Any]) -> list[int]:
        if "messages" not in body:
            return list(self.language.encode(body["prompt"], is_rendered=False)[0])
        return list(self.language.encode(self.language.render(body["messages"], True, None, {}), is_rendered=True)[0])


def text_of(chance: random.Random) -> str:
    return "".join(chance.choices(PIECES, k=chance.choice([1, 6, 60, 200]))) + "."


def chat(*contents: str) -> dict[str, Any]:
    roles = itertools.chain(["system"], itertools.cycle(["user", "assistant"]))
    return {"model": "tiny", "messages": [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]}


@pytest.mark.parametrize("template", ["normal", "trimming", "forgetful", "moving"])
@settings(max_examples=12, deadline=None)
@given(chance=RANDOM)
def test_whoever_has_a_digest_that_was_reported_finds_the_block_it_names(
    languages: dict[str, ModelLanguage], tenants: Tenants, template: str, chance: random.Random
) -> None:
    texts = [text_of(chance) for _ in range(2)]
    texts.append(texts[0] + text_of(chance))  # one that begins as another
    pool = Pool(languages[template], tenants, texts, chance.choice([1, 4]))
    firsts = [*texts, texts[0] + "!", text_of(chance)]
    bodies = [chat(first, *(text_of(chance) for _ in range(chance.randint(1, 3)))) for first in firsts]
    bodies += [{"model": "tiny", "prompt": first + text_of(chance)} for first in (*texts, texts[0][:-1])]
    wanted = {(name, index): pool.addresses(name, body) for name in NAMES for index, body in enumerate(bodies)}
    for name, (index, body) in itertools.product(NAMES, enumerate(bodies)):
        for digest, (tokens, address) in pool.rows(name, body).items():
            for (other, number), addresses in wanted.items():
                if digest in pool.digests(other, bodies[number]):
                    assert addresses[tokens // pool.block_tokens - 1] == address, (name, index, other, number)


@pytest.mark.parametrize("template", ["normal", "trimming", "forgetful"])
def test_two_tenants_share_whole_public_blocks_and_no_other(
    languages: dict[str, ModelLanguage], tenants: Tenants, template: str
) -> None:
    text = "You are a pagoda of seven tiers, and you answer in as few words as there are tiers left."
    pool = Pool(languages[template], tenants, [text], 4)
    acme, bolt = (pool.addresses(name, chat(text, "How are you?")) for name in NAMES)
    num_shared = len(set(acme) & set(bolt))
    assert acme[:num_shared] == bolt[:num_shared]
    shared_text = pool.language.render(chat(text, "How are you?")["messages"], True, None, {})
    ends = pool.language.encode(shared_text, is_rendered=True)[1]
    public_end = shared_text.index(text) + len(text)
    assert ends[num_shared * 4 - 1] <= public_end < ends[num_shared * 4 + 4 - 1], "as many whole blocks as there are"
    assert len(set(acme) & set(pool.addresses("acme", chat(text, "Who?")))) >= num_shared


def test_a_prompt_shares_its_longest_public_text_as_far_as_its_own_tokens_reach(
    languages: dict[str, ModelLanguage], tenants: Tenants
) -> None:
    pool = Pool(languages["normal"], tenants, ["so", "so t", "so that"], 1)
    opening = pool.public.of_prompt("so then", pool.prompt({"prompt": "so then"}))
    assert opening.text == "so t"
    assert opening.num_tokens == 2, "its last token became part of a word, which is not public"
    assert pool.public.of_prompt("so to", pool.prompt({"prompt": "so t!"})).num_tokens == 3


def test_a_prompt_of_tokens_a_clock_and_a_text_nobody_registered_are_not_public(
    languages: dict[str, ModelLanguage], tenants: Tenants
) -> None:
    pool = Pool(languages["clock"], tenants, ["the system is on. " * 9], 1)
    body = chat(pool.texts[0], "so")
    assert pool.public.of_chat(body, pool.prompt(body)).num_tokens == 0
    tokens = pool.prompt({"prompt": pool.texts[0]})
    assert pool.public.of_prompt(tokens, tokens).num_tokens == 0
    pool = Pool(languages["normal"], tenants, [], 1)
    assert pool.public.of_chat(body, pool.prompt(body)).num_tokens == 0


@pytest.fixture
def public_texts() -> list[str]:
    return ["You are a small and public model. " * 4]


async def ask(server: Server, path: str, key: str, body: dict[str, Any]) -> tuple[int, int]:
    """Return the tokens of a prompt and how many of them were cached."""
    headers = {"Authorization": f"Bearer {key}"}
    async with server.http.post(f"{server.url}/v1/{path}", json=body, headers=headers) as answer:
        document = await answer.json()
        assert answer.status == 200, document
        return document["usage"]["prompt_tokens"], document["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("kind", ["chat/completions", "completions"])
async def test_over_http_another_tenant_is_served_the_public_part_and_the_same_one_all(
    loaded: Loaded, keys: Keys, tenants: Tenants, public_texts: list[str], kind: str, tmp_path: Path
) -> None:
    service = dataclasses.replace(
        loaded.service,
        callers=Callers(keys.pool_secret, bytes(range(32)), lambda: tenants, 16),
        public=PublicTexts(loaded.service.language, lambda: public_texts),
    )
    body: dict[str, Any] = {"model": "tiny", "max_tokens": 1}
    if kind == "completions":
        body["prompt"] = public_texts[0] + f"The private part. {kind} " * 9
    else:
        body["messages"] = chat(public_texts[0], f"The private part. {kind} " * 9)["messages"]
    other_words = {"user": "acme"}
    async with server_of(service) as server:
        num_prompt, cached = await ask(server, kind, "key-acme", body)
        assert cached == 0
        _, shared = await ask(server, kind, "key-bolt", body | other_words)
        assert 0 < shared < num_prompt // 2, "the public blocks, whatever the body says about its sender"
        assert await ask(server, kind, "key-acme", body) == (num_prompt, (num_prompt - 1) // 16 * 16)
        public_texts[0] = "Another text."
        assert (await ask(server, kind, "key-bolt", body))[1] == 0, "read anew with each request"
