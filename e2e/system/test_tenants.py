"""What one tenant stored no other finds, in any tier; public texts are everybody's; nothing stands anywhere in clear.

(CASES E15, E16, E30.)
"""

import http.client
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.system.stories import demand, eventually, shown, wait_parked, wait_settled
from e2e.system.tenants import BLOCK, NAMES, OTHERS, OWNER, api_key, ask, is_cold, reusable, tenant_pods
from pagoda_protocol.tenants import admin_token, key_hash
from tests.support.pods import Pods
from tests.support.program import HOST, Answer, RequestFailed

SECRET_WORDS = "The vicuna signs at midnight, and only the quokka knows which of the two contracts is the real one. "
PUBLIC = "You are the clerk of a harbour, you know every ship by name, and you answer in one short sentence. " * 7
TOKENS = [40 + number * 7 % 200 for number in range(8 * BLOCK + 1)]


@pytest.fixture(scope="module")
def pods(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    with tenant_pods(tmp_path_factory.mktemp("pods"), checkpoint, (PUBLIC,)) as running:
        yield running


def test_e30_same_tenant_hits_and_any_other_misses_in_every_tier(pods: Pods) -> None:
    engine = pods.engine("chat-0")

    def story(salt: str) -> None:
        prompt = salt + SECRET_WORDS * 2
        cold = ask(engine, OWNER, prompt)
        assert is_cold(cold)
        for tier, other in zip(("device", "ram", "disk", "pool"), OTHERS, strict=True):
            if tier != "device":
                wait_parked(pods)
            if tier in ("disk", "pool"):
                wait_settled(pods, reusable(cold) // BLOCK)
                pods.take_away("chat-0", is_disk_too=tier == "pool")
            # Whatever the body says about who sends it: a name is ignored, a salt is no field of ours.
            found = ask(engine, other, prompt, user=OWNER, prompt_cache_key=OWNER)
            assert is_cold(found), (tier, found.sources)
            assert found.text == cold.text
            mine = ask(engine, OWNER, prompt, user=other)
            assert mine.text == cold.text
            demand(mine.sources[tier] > 0, (tier, mine.sources))  # not all of it, where computing the rest is sooner

    shown(story)
    pods.wait_idle("chat-0")


@pytest.mark.parametrize("field", ["cache_salt", "scope", "tenant"])
def test_a_body_cannot_name_a_scope(pods: Pods, field: str) -> None:
    with pytest.raises(RequestFailed) as refused:
        ask(pods.engine("chat-0"), OTHERS[0], "hello", **{field: OWNER})
    assert refused.value.status == 400


@pytest.mark.parametrize("key", [None, "", "sk-wrong", api_key(OWNER) + "x"])
def test_without_a_known_key_nobody_is_served_by_engine_or_router(pods: Pods, key: str | None) -> None:
    for program in (pods.engine("chat-0"), pods.router):
        with pytest.raises(RequestFailed) as refused:
            program.complete("hello", api_key=key)
        assert refused.value.status == 401


def chat(pods: Pods, name: str, question: str, program: str = "engine chat-0") -> Answer:
    messages = [{"role": "system", "content": PUBLIC}, {"role": "user", "content": question}]
    answer = pods.programs[program].chat(messages, api_key=api_key(name), max_tokens=4, ignore_eos=True)
    assert sum(answer.sources.values()) == answer.usage["prompt_tokens"]
    return answer


def test_a_public_text_is_shared_by_all_tenants_in_every_tier_and_what_follows_it_is_not(pods: Pods) -> None:
    question = "Which ship came in last, and which will come in next?"

    def story(salt: str) -> None:
        first = chat(pods, OWNER, salt + question)
        second = chat(pods, OTHERS[0], salt + question)
        num_public = second.sources["device"]
        assert 0 < num_public < reusable(first), second.sources
        assert second.usage["prompt_tokens"] - second.sources["compute"] == num_public
        assert chat(pods, OTHERS[0], salt + question).sources["device"] == reusable(first)
        for tier, other in zip(("ram", "disk", "pool"), OTHERS[1:], strict=True):
            wait_parked(pods)
            if tier in ("disk", "pool"):
                wait_settled(pods, reusable(first) // BLOCK)
                pods.take_away("chat-0", is_disk_too=tier == "pool")
            found = chat(pods, other, salt + question)
            assert found.text == first.text
            assert found.usage["prompt_tokens"] - found.sources["compute"] <= num_public, "public blocks at most"
            demand(found.sources[tier] > 0, (tier, found.sources))

    shown(story)


def test_the_router_finds_a_prefix_for_its_own_tenant_and_a_public_text_for_all(pods: Pods) -> None:
    def known(answer: Answer) -> int:
        """Tokens that the router believed its pod to hold of this prompt."""
        header = next(value for name, value in answer.headers.items() if name.lower() == "x-pagoda-route")
        return int(dict(part.split("=", 1) for part in header.split(";"))["tokens"])

    def story(salt: str) -> None:
        prompt = f"{salt}routed: {SECRET_WORDS * 2}"
        ask(pods.router, OWNER, prompt)
        eventually(lambda: known(ask(pods.router, OWNER, prompt)) > 0, "the owner's prefix was never found")
        assert known(ask(pods.router, OTHERS[0], prompt)) == 0
        chat(pods, OWNER, f"{salt} a question", "router")
        eventually(
            lambda: known(chat(pods, OTHERS[1], f"{salt} another", "router")) > 0, "the public text was never found"
        )

    shown(story)


def arena_and_disk(pods: Pods) -> Iterator[tuple[str, bytes]]:
    argv = pods.sidecar("chat-0").command.argv
    for flag in ("--volume", "--disk-dir"):
        folder = Path(argv[argv.index(flag) + 1])
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                yield path.name, path.read_bytes()


def pool_keys(pods: Pods) -> bytes:
    connection = http.client.socket.create_connection((HOST, pods.memcached().port), timeout=30)  # type: ignore[attr-defined]
    with connection:
        connection.sendall(b"lru_crawler metadump all\r\n")
        answer = b""
        while not answer.endswith(b"END\r\n"):
            received = connection.recv(1 << 16)
            assert received or not answer, "memcached ended in the middle"
            answer += received
    return bytes(answer)


def test_keys_logs_metrics_hints_and_files_hold_no_names_no_words_and_no_tokens(pods: Pods) -> None:
    engine = pods.engine("chat-0")
    prompt = SECRET_WORDS * 2
    for _ in range(2):
        first = ask(engine, OWNER, prompt)
        ask(engine, OTHERS[0], TOKENS)
    with pytest.raises(RequestFailed):  # refusals are logged too
        ask(engine, OWNER, prompt, cache_salt=OWNER)
    tenants = pods.folder / "tenants" / "tenants.json"
    good = tenants.read_text()
    tenants.write_text(good.replace("keyHashes", "keyhashes", 1))
    eventually(lambda: "new version not used" in pods.router.log.read_text(), "the bad file was never seen")
    tenants.write_text(good)
    wait_parked(pods)
    wait_settled(pods, reusable(first) // BLOCK)
    places = {f"log of {name}": program.log.read_bytes() for name, program in pods.programs.items()}
    for name in ("engine chat-0", "sidecar chat-0", "router"):
        places[f"metrics of {name}"] = pods.programs[name].get("/metrics")[1].encode()
    places["hint stream"] = pods.sidecar("chat-0").get("/v1/prefixes?follow=false")[1].encode()
    places["pool keys"] = pool_keys(pods)
    places |= dict(arena_and_disk(pods))
    assert places["hint stream"].count(b'"rows"'), "there is something to hide"
    assert places["pool keys"].count(b"key="), "there is something to hide"
    assert b"PGDK" in places["arena"], "there is something to hide"
    needles = [name.encode() for name in NAMES] + [api_key(name).encode() for name in NAMES]
    needles += [key_hash(api_key(name)).removeprefix("sha256:").encode() for name in NAMES]
    needles += [b"vicuna", b"quokka", b"clerk of a harbour"]
    for size in ("H", "I", "Q"):
        needles.append(struct.pack(f"<4{size}", *TOKENS[:4]))
    needles += [separator.join(str(token) for token in TOKENS[:4]).encode() for separator in (", ", ",", " ")]
    needles.append(admin_token((pods.folder / "secret" / "pool").read_bytes()).encode())
    found = [(place, needle) for place, text in places.items() for needle in needles if needle in text]
    assert not found


def test_only_the_admin_token_drains_a_real_engine_and_no_tenant_has_it(pods: Pods) -> None:
    engine = pods.engine("chat-0")

    def drain(token: str) -> int:
        connection = http.client.HTTPConnection(HOST, engine.port, timeout=60)
        try:
            connection.request("POST", "/drain", headers={"Authorization": f"Bearer {token}"})
            return connection.getresponse().status
        finally:
            connection.close()

    secret = (pods.folder / "secret" / "pool").read_bytes()
    assert [drain(token) for token in ("", api_key(OWNER), secret.hex())] == [401, 401, 401]
    assert json.loads(engine.get("/ready")[1])["status"] == "ready"
    assert drain(admin_token(secret)) == 200
    assert "draining" in engine.get("/ready")[1]
