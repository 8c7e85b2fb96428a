"""The real engine behind the real server, asked by the real client."""

import asyncio
import io
import json
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagoda_engine.serving.choice import Choice
from pagoda_engine.serving.loading import Loaded
from pagoda_engine.serving.stream import EventStream
from tests.engine.serving.conftest import MAX_MODEL_TOKENS, Server, eventually, held

MESSAGES: list[Any] = [
    {"role": "system", "content": "Be kind. " * 12},
    {"role": "user", "content": "Tell me of the sea"},
]

LONG: list[Any] = [{"role": "user", "content": "a" * 5000}]


async def whole(client: openai.AsyncOpenAI, **options: Any) -> Any:
    return await client.chat.completions.create(**({"model": "tiny", "messages": MESSAGES, "max_tokens": 12} | options))


async def streamed(client: openai.AsyncOpenAI, **options: Any) -> tuple[dict[int, str], list[Any]]:
    """Return the text by choice, and all chunks."""
    chunks = [chunk async for chunk in await whole(client, stream=True, **options)]
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    return texts, chunks


async def test_a_stream_says_the_same_as_a_whole_answer(server: Server) -> None:
    async with server.openai() as client:
        answer = await whole(client, seed=5)
        texts, chunks = await streamed(client, seed=5, stream_options={"include_usage": True})
    assert texts == {0: answer.choices[0].message.content}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1] if chunk.choices[0].finish_reason] == ["length"]
    assert answer.choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens == 12
    assert chunks[-1].usage.prompt_tokens == answer.usage.prompt_tokens


async def test_without_include_usage_no_chunk_has_usage(server: Server) -> None:
    async with server.openai() as client:
        _, chunks = await streamed(client)
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


async def test_usage_says_where_each_prompt_token_came_from(server: Server) -> None:
    messages = [{"role": "user", "content": "a prompt that nobody sent before " * 6}]
    async with server.openai() as client:
        first = await whole(client, messages=messages)
        second = await whole(client, messages=messages)
    for answer in (first, second):
        details = answer.usage.prompt_tokens_details
        assert sum(details.sources.values()) == answer.usage.prompt_tokens
        assert details.cached_tokens == answer.usage.prompt_tokens - details.sources["compute"]
    assert first.usage.prompt_tokens_details.cached_tokens < 48
    assert second.usage.prompt_tokens_details.cached_tokens >= second.usage.prompt_tokens - 16


async def test_a_seed_repeats_an_answer_and_none_does_not(server: Server) -> None:
    async with server.openai() as client:
        answers = [(await whole(client, seed=seed, max_tokens=24)).choices[0].message.content for seed in (7, 7, 8)]
        unseeded = {(await whole(client, max_tokens=24)).choices[0].message.content for _ in range(3)}
    assert answers[0] == answers[1] != answers[2]
    assert len(unseeded) > 1


async def test_n_gives_choices_that_differ_and_counts_the_prompt_once(server: Server) -> None:
    async with server.openai() as client:
        one = await whole(client, seed=3, max_tokens=24)
        both = await whole(client, seed=3, max_tokens=24, n=2)
        texts, _ = await streamed(client, seed=3, max_tokens=24, n=2)
    contents = [choice.message.content for choice in both.choices]
    assert contents[0] == one.choices[0].message.content != contents[1]
    assert texts == dict(enumerate(contents))
    assert both.usage.prompt_tokens == one.usage.prompt_tokens
    assert both.usage.completion_tokens == 48
    assert sum(both.usage.prompt_tokens_details.sources.values()) == both.usage.prompt_tokens


async def test_a_stop_string_cuts_exactly_and_aborts_the_rest(server: Server) -> None:
    async with server.openai() as client:
        full = (await whole(client, temperature=0, max_tokens=40)).choices[0].message.content
        for start in range(2, len(full) - 3, 5):
            stop = full[start : start + 3]
            answer = await whole(client, temperature=0, max_tokens=40, stop=stop)
            texts, _ = await streamed(client, temperature=0, max_tokens=40, stop=[stop, "never said"])
            assert answer.choices[0].message.content == texts[0] == full[: full.index(stop)]
            assert answer.choices[0].finish_reason == "stop"


async def test_text_completions_take_strings_lists_and_token_ids(server: Server) -> None:
    language = server.service.language
    prompts = ["the sea is", "in the morning"]
    ids = list(language.encode(prompts[0], is_rendered=False)[0])
    async with server.openai() as client:
        complete = client.completions.create
        single = [(await complete(model="tiny", prompt=prompt, temperature=0)).choices[0].text for prompt in prompts]
        listed = await complete(model="tiny", prompt=prompts, temperature=0)
        tokens = await complete(model="tiny", prompt=ids, temperature=0)
    assert [choice.text for choice in listed.choices] == single
    assert tokens.choices[0].text == single[0]
    assert listed.usage.completion_tokens <= 2 * 16
    assert listed.usage.prompt_tokens == sum(len(language.encode(prompt, False)[0]) for prompt in prompts)


async def test_min_tokens_and_ignore_eos_go_past_the_end(server: Server) -> None:
    async with server.openai() as client:
        answer = await whole(client, max_tokens=30, seed=1, extra_body={"ignore_eos": True})
        assert answer.usage.completion_tokens == 30
        answer = await whole(client, max_tokens=30, seed=1, extra_body={"min_tokens": 20})
        assert answer.usage.completion_tokens >= 20


async def test_models_lists_the_one_model(server: Server) -> None:
    async with server.openai() as client:
        assert [model.id async for model in client.models.list()] == ["tiny"]
        assert (await client.models.retrieve("tiny")).id == "tiny"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("some/other")


@pytest.mark.parametrize(("sent", "is_kept"), [("abc-1.2:3", True), ("two words", False), ("x" * 200, False)])
async def test_a_request_id_is_repeated_if_it_can_stand_in_a_log(server: Server, sent: str, is_kept: bool) -> None:
    async with server.http.get(f"{server.url}/health", headers={"x-request-id": sent}) as answer:
        assert (answer.headers["x-request-id"] == sent) == is_kept
        assert len(answer.headers["x-request-id"]) == (len(sent) if is_kept else 32)


def chat_body(**fields: Any) -> bytes:
    return json.dumps({"model": "tiny", "messages": MESSAGES, **fields}).encode()


@pytest.mark.parametrize(
    ("path", "data", "status", "param", "code"),
    [
        ("chat/completions", b"{", 400, None, None),
        ("chat/completions", b"\xff", 400, None, None),
        ("chat/completions", b"[]", 400, None, None),
        ("chat/completions", chat_body(model="other"), 404, "model", "model_not_found"),
        ("chat/completions", chat_body(surprise=1), 400, "surprise", None),
        ("chat/completions", chat_body(tools=[{"type": "function", "function": {"name": "f"}}]), 400, "tools", None),
        ("chat/completions", chat_body(messages=LONG), 400, "messages", "context_length_exceeded"),
        ("chat/completions", chat_body(max_tokens=MAX_MODEL_TOKENS), 400, "messages", "context_length_exceeded"),
        ("chat/completions", b" " * (2 << 20), 413, None, None),
        ("completions", json.dumps({"model": "tiny", "prompt": [10**6]}).encode(), 400, "prompt", None),
        ("nothing", b"", 404, None, None),
        ("models", b"", 405, None, None),
    ],
)  # fmt: skip
async def test_every_refusal_has_openais_shape(
    server: Server, path: str, data: bytes, status: int, param: str | None, code: str | None
) -> None:
    async with server.http.post(f"{server.url}/v1/{path}", data=io.BytesIO(data)) as answer:
        error = (await answer.json())["error"]
        assert answer.status == status
        assert answer.headers["x-request-id"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert (error["param"], error["code"]) == (param, code)


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("levels", [120, 130, 400, 900])
async def test_a_nesting_that_the_parser_takes_and_our_recursion_does_not_is_the_callers_mistake(
    server: Server, levels: int
) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": deep(levels - 5)}}
    status = await post_status(server, chat_body(tools=[tool]))
    assert status == 400
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": json.dumps(deep(levels))}}
    messages = [*MESSAGES, {"role": "assistant", "content": "so", "tool_calls": [call]}]
    assert await post_status(server, chat_body(messages=messages, max_tokens=2)) == 200


async def test_a_body_that_is_not_coded_as_it_says_is_the_callers_mistake(server: Server) -> None:
    assert await post_status(server, b"hello", headers={"Content-Encoding": "gzip"}) == 400


async def test_an_expectation_that_nobody_can_meet_is_answered(server: Server) -> None:
    assert await post_status(server, chat_body(), headers={"Expect": "a miracle"}) == 417


async def test_a_client_that_goes_away_is_no_failure_of_ours(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def gone(*_: object) -> None:
        raise ConnectionResetError("Cannot write to closing transport")

    monkeypatch.setattr(EventStream, "send", gone)
    async with server.http.post(f"{server.url}/v1/chat/completions", data=io.BytesIO(chat_body(stream=True))) as answer:
        await answer.read()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def post_status(server: Server, data: bytes, **options: Any) -> int:
    url = f"{server.url}/v1/chat/completions"
    async with server.http.post(url, data=io.BytesIO(data), **options) as answer:
        assert answer.headers["x-request-id"]
        return answer.status


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_frees_everything_at_once(server: Server, loaded: Loaded, stream: bool) -> None:
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 800, "stream": stream, "ignore_eos": True, "n": 4}
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    data = json.dumps(body).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: "
        + str(len(data)).encode()
        + b"\r\n\r\n"
        + data
    )
    if stream:
        await reader.readuntil(b"data: ")
    else:
        await eventually(lambda: loaded.engine.stats().num_running > 0)
    assert not loaded.engine.is_idle
    writer.close()
    await eventually(lambda: loaded.engine.is_idle and not any(held(loaded)))
    await eventually(lambda: server.gate.num_inside == 0)


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.003, 0.01, 0.03])
async def test_a_client_may_go_away_at_any_moment(server: Server, loaded: Loaded, delay: float) -> None:
    async with server.openai() as client:
        tasks = [asyncio.create_task(whole(client, max_tokens=300, extra_body={"ignore_eos": True})) for _ in range(6)]
        await asyncio.sleep(delay)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await eventually(lambda: server.gate.num_inside == 0 and loaded.engine.is_idle)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet="the sea😀é\n你", min_size=1, max_size=40), data=st.data())
def test_stop_strings_cut_at_the_same_place_however_tokens_split_the_text(
    loaded: Loaded, text: str, data: st.DataObject
) -> None:
    language = loaded.service.language
    start = data.draw(st.integers(0, len(text) - 1))
    stop = text[start : start + data.draw(st.integers(1, 4))]
    tokens = list(language.encode(text, is_rendered=True)[0])
    choice = Choice(0, language.detokenizer(), [stop], language.eos_ids)
    shown = ""
    while tokens and choice.finish is None:
        size = data.draw(st.integers(1, len(tokens)))
        shown += choice.push(tokens[:size], "length" if size == len(tokens) else None).text
        assert "\N{REPLACEMENT CHARACTER}" not in shown
        tokens = tokens[size:]
    assert shown == choice.text == text[: text.index(stop)]
    assert choice.finish == "stop"
