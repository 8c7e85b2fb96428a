"""Around requests: starting, keys, failures, drain, digests; with a fake engine where it must fail."""

import asyncio
import dataclasses
import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest

from pagoda_engine.core.request import NewRequest, TokenEvent, TokenSink
from pagoda_engine.core.tiers import DigestRow
from pagoda_engine.serving.auth import Callers
from pagoda_engine.serving.keys import Keys
from pagoda_engine.serving.loading import Loaded
from pagoda_engine.serving.service import Service
from pagoda_protocol.addresses import chain_addresses
from pagoda_protocol.digests import request_points
from pagoda_protocol.tenants import Tenants, key_hash, parse_tenants
from tests.engine.serving.conftest import ADMIN, Server, eventually, server_of, write_secrets

BODY: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hello there " * 60}],
    "max_tokens": 4,
}


class FakeEngine:
    """Answers each request with events made by `script`, from the thread that submits."""

    def __init__(self, script: Callable[[NewRequest], Sequence[TokenEvent]]) -> None:
        self.script = script
        self.aborted: list[str] = []
        self.requests: list[NewRequest] = []
        self.rows: list[DigestRow] = []

    def submit(self, request: NewRequest, sink: TokenSink) -> None:
        self.requests.append(request)
        for event in self.script(request):
            sink(event)

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def report_digests(self, rows: Sequence[DigestRow]) -> None:
        self.rows.extend(rows)


def begun(request: NewRequest, *tokens: int, finish: str | None = None, error: str | None = None) -> list[TokenEvent]:
    sources = {"compute": len(request.prompt)}
    first = TokenEvent(request.request_id, tokens, sources=sources)
    return [first, TokenEvent(request.request_id, (), finish=finish, error=error)] if finish else [first]


def with_engine(loaded: Loaded, engine: FakeEngine) -> Service:
    return dataclasses.replace(loaded.service, engine=engine)


async def post(server: Server, **headers: str) -> tuple[int, Any]:
    url = f"{server.url}/v1/chat/completions"
    async with server.http.post(url, json=BODY, headers=headers) as answer:
        return answer.status, await answer.json()


async def test_while_loading_health_is_200_and_the_rest_says_why_not() -> None:
    async with server_of(None) as server:
        server.gate.say("loading weights 37%")
        async with server.http.get(f"{server.url}/health") as answer:
            assert answer.status == 200
        async with server.http.get(f"{server.url}/ready") as answer:
            assert answer.status == 503
            shown = {"generation": 7, "proof": None}
            assert await answer.json() == {"status": "not ready", "reason": "loading weights 37%", **shown}
        status, body = await post(server)
        assert status == 503
        assert "loading weights" in body["error"]["message"]


async def test_ready_tells_the_generation_of_the_live_settings_and_what_was_proven(server: Server) -> None:
    async with server.http.get(f"{server.url}/ready") as answer:
        tiers = {"ram": "none", "disk": "none", "pool": "none"}
        proof = {"generated": True, "tiers": tiers, "state": ""}
        assert (answer.status, await answer.json()) == (200, {"status": "ready", "generation": 7, "proof": proof})


async def test_answers_are_counted_by_route_and_code(server: Server) -> None:
    await post(server)
    async with server.http.get(f"{server.url}/metrics") as answer:
        assert 'pagoda_http_answers_total{code="200",path="/v1/chat/completions"} 1.0' in await answer.text()


async def test_a_failure_before_the_first_token_is_a_plain_error(loaded: Loaded) -> None:
    engine = FakeEngine(lambda request: [TokenEvent(request.request_id, (), "error", error="it broke")])
    async with server_of(with_engine(loaded, engine)) as server, server.openai() as client:
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError, match="it broke"):
                await client.chat.completions.create(**BODY, stream=stream)


async def test_a_failure_in_a_stream_is_an_event_and_no_done(loaded: Loaded) -> None:
    engine = FakeEngine(lambda request: begun(request, 40, finish="error", error="it broke"))
    async with server_of(with_engine(loaded, engine)) as server:
        url = f"{server.url}/v1/chat/completions"
        async with server.http.post(url, json={**BODY, "stream": True}) as answer:
            lines = (await answer.text()).strip().split("\n\n")
        assert json.loads(lines[-1].removeprefix("data: "))["error"]["message"] == "it broke"
        async with server.openai() as client:
            with pytest.raises(openai.APIError, match="it broke"):
                async for _ in await client.chat.completions.create(**BODY, stream=True):
                    pass


async def test_an_engine_that_stops_makes_requests_503(loaded: Loaded) -> None:
    engine = FakeEngine(lambda request: [TokenEvent(request.request_id, (), "abort")])
    async with server_of(with_engine(loaded, engine)) as server:
        assert (await post(server))[0] == 503


async def test_a_slow_template_holds_up_nobody_else(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    language = loaded.service.language

    may_go_on = threading.Event()

    def slow(*arguments: Any) -> str:
        assert may_go_on.wait(20)
        return "hello"

    engine = FakeEngine(lambda request: begun(request, 40, finish="stop"))
    async with server_of(with_engine(loaded, engine)) as server:
        monkeypatch.setattr(type(language), "render", slow)
        task = asyncio.create_task(post(server))
        await asyncio.sleep(0.05)
        async with server.http.get(f"{server.url}/health") as answer:
            assert answer.status == 200
        assert not task.done()
        may_go_on.set()
        assert (await task)[0] == 200


async def test_a_step_of_the_model_holds_up_no_other_answer(
    server: Server, loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, computing, go_on = loaded.engine._runner, threading.Event(), threading.Event()
    run = runner.run

    def slow(chunks: Any) -> Any:
        computing.set()
        assert go_on.wait(10)
        return run(chunks)

    monkeypatch.setattr(runner, "run", slow)
    task = asyncio.create_task(post(server))
    await eventually(computing.is_set)
    for path in ("/health", "/ready", "/metrics", "/v1/models"):
        async with server.http.get(f"{server.url}{path}") as answer:
            assert answer.status == 200
    assert not task.done()
    go_on.set()
    assert (await task)[0] == 200


async def test_a_client_that_goes_away_while_its_request_is_being_submitted_is_aborted_after_it(loaded: Loaded) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow(request: NewRequest) -> list[TokenEvent]:
        entered.set()
        assert go_on.wait(10)
        assert not engine.aborted  # an abort that overtook its request would be lost
        return []

    engine = FakeEngine(slow)
    async with server_of(with_engine(loaded, engine)) as server:
        task = asyncio.create_task(post(server))
        await eventually(entered.is_set)
        task.cancel()
        await eventually(lambda: server.gate.num_inside == 0)
        go_on.set()
        await eventually(lambda: engine.aborted == [request.request_id for request in engine.requests])


async def test_drain_lets_streams_end_and_turns_others_away(loaded: Loaded) -> None:
    handed_over: list[float] = []
    service = dataclasses.replace(loaded.service, hand_over=lambda: handed_over.append(time.monotonic()) or 0)
    async with server_of(service) as server, server.openai() as client:
        options = {**BODY, "max_tokens": 60, "stream": True}
        stream = await client.chat.completions.create(**options, extra_body={"ignore_eos": True})
        draining = asyncio.create_task(server.http.post(f"{server.url}/drain", headers=ADMIN))
        await eventually(lambda: server.gate.reason == "draining")
        status, body = await post(server)
        assert (status, body["error"]["code"]) == (503, "unavailable")
        async with server.http.get(f"{server.url}/ready") as answer:
            ready = await answer.json()
            assert (answer.status, ready["reason"], ready["proof"]["generated"]) == (503, "draining", True)
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices[0].finish_reason == "length"
        async with await draining as answer:
            assert await answer.json() == {"status": "drained", "num_running": 0}
    assert len(handed_over) == 2  # at once, and again for what the stream left


async def test_a_drain_that_takes_too_long_ends_with_what_is_left(loaded: Loaded) -> None:
    engine = FakeEngine(lambda request: [])
    async with server_of(with_engine(loaded, engine), drain_seconds=0.05) as server:
        task = asyncio.create_task(post(server))
        await eventually(lambda: bool(engine.requests))
        async with server.http.post(f"{server.url}/drain", headers=ADMIN) as answer:
            assert await answer.json() == {"status": "draining", "num_running": 1}
        task.cancel()
        await eventually(lambda: bool(engine.aborted))


@pytest.fixture
def tenants() -> Tenants:
    entries = [{"name": name, "keyHashes": [key_hash(f"key-{name}")]} for name in ("acme", "bolt")]
    return parse_tenants(json.dumps({"tenants": entries}))


async def test_tenants_share_with_themselves_alone(loaded: Loaded, keys: Keys, tenants: Tenants) -> None:
    callers = Callers(keys.pool_secret, bytes(32), lambda: tenants, 16)
    service = dataclasses.replace(loaded.service, callers=callers)
    async with server_of(service) as server:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "key-acme"}):
            status, body = await post(server, **headers)
            assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        cached = []
        for name in ("acme", "acme", "bolt", "bolt"):
            _, body = await post(server, Authorization=f"Bearer key-{name}")
            cached.append(body["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert [count > 0 for count in cached] == [False, True, False, True]


def test_bad_keys_are_refused_with_the_file_and_what_it_should_hold(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="pool: cannot be read"):
        Keys(tmp_path, None)
    write_secrets(tmp_path)
    (tmp_path / "tenants.json").write_text("[]")
    with pytest.raises(Exception, match="tenants file"):
        Keys(tmp_path, tmp_path)


async def test_the_digests_of_a_conversation_name_blocks_the_engine_has(loaded: Loaded, keys: Keys) -> None:
    reply = "it is wide and it is wide and it is wide"
    language = loaded.service.language
    tokens = tuple(language.encode(reply, is_rendered=True)[0])
    engine = FakeEngine(lambda request: begun(request, *tokens, finish="length"))
    async with server_of(with_engine(loaded, engine)) as server:
        status, body = await post(server)
        assert status == 200
        assert body["choices"][0]["message"]["content"] == reply
        await eventually(lambda: bool(engine.rows))
    request = engine.requests[0]
    addresses = chain_addresses(request.root, [*request.prompt, *tokens[:-1]], 16)
    assert all(row.address == addresses[row.tokens // 16 - 1] for row in engine.rows)
    following = {**BODY, "messages": [*BODY["messages"], {"role": "assistant", "content": reply}]}
    digest = loaded.service.coverage.template_digest
    known = {point.digest for point in request_points(keys.digest_key, "anonymous", digest, following)}
    assert {row.digest for row in engine.rows} <= known
    assert max(row.tokens for row in engine.rows) >= len(request.prompt) - 16


async def test_a_request_that_never_began_reports_nothing(loaded: Loaded) -> None:
    engine = FakeEngine(lambda request: [TokenEvent(request.request_id, (), "error", error="it broke")])
    async with server_of(with_engine(loaded, engine)) as server:
        await post(server)
    assert engine.rows == []


async def test_min_tokens_is_ended_by_the_server_and_seeds_differ_by_choice(loaded: Loaded) -> None:
    eos = min(loaded.service.language.eos_ids)
    engine = FakeEngine(lambda request: begun(request, eos, 40, eos, 41))
    async with server_of(with_engine(loaded, engine)) as server:
        url = f"{server.url}/v1/chat/completions"
        async with server.http.post(url, json={**BODY, "n": 2, "seed": -1, "min_tokens": 2, "max_tokens": 9}) as answer:
            choices = (await answer.json())["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["stop", "stop"]
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.requests)
    assert {request.stop_token_ids for request in engine.requests} == {frozenset()}
    assert len({request.sampling.seed for request in engine.requests}) == 2
    assert [request.replay_cause for request in engine.requests] == [None, "n"]
