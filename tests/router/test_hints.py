"""Hints over a real stream, as far as they show in decisions: who is believed, and when no longer."""

import json
from pathlib import Path
from typing import Any

import pytest

from pagoda_protocol.digests import DIGEST_VERSION, request_points
from pagoda_protocol.tenants import ANONYMOUS_SCOPE, key_hash
from pagoda_router import hints as hints_module
from tests.router import fakes
from tests.router.fakes import KEY, MODEL, TEMPLATE, Bench, FakePod, routed, until

TEXT = "a long system prompt " * 150  # 3150 bytes


def rows(tier: str, tokens: int = 640, text: str = TEXT, scope: str = ANONYMOUS_SCOPE) -> dict[str, Any]:
    """Return a line that says the longest digest of a chat of `text`."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
    digest = request_points(KEY, scope, bytes.fromhex(TEMPLATE), body)[-1].digest
    return {"type": "rows", "set": [[digest.hex(), tokens, tier, 1.0]], "drop": []}


async def route(bench: Bench, text: str = TEXT, **headers: str) -> dict[str, str]:
    """Send a chat and return the parts of its route header."""
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": text}]}).encode()
    async with bench.client.post(f"{bench.url}/v1/chat/completions", data=body, headers=headers) as response:
        assert response.status == 200
        return dict(part.split("=") for part in response.headers["x-pagoda-route"].split(";"))


def num_rows(bench: Bench, name: str) -> int:
    return next(member.hints.num_rows for member in bench.router.fleet.ready() if member.pod.name == name)


async def say(bench: Bench, pod: FakePod, num: int, **line: Any) -> None:
    """Let `pod` say a line and wait until the router knows `num` rows of it."""
    await pod.say(**line)
    await until(lambda: num_rows(bench, pod.name) == num)


async def test_a_request_goes_where_its_prefix_is(tmp_path: Path) -> None:
    async with routed(tmp_path, num_pods=4, policy="CacheAware") as bench:
        await say(bench, bench.pods[2], 1, **rows("device"))
        for _ in range(5):
            assert await route(bench) == {"pod": "chat-2", "reason": "prefix", "tokens": "640"}
        assert (await route(bench, "something else " * 200))["reason"] == "least_loaded"
        longer = await route(bench, TEXT + "and a question")
        assert longer["reason"] == "least_loaded"  # the row stands for the whole message, not for its 512-byte steps
        assert await bench.metric('pagoda_router_hint_rows{pod="chat-2"}') == 1
        assert await bench.metric('pagoda_router_hint_stream_up{pod="chat-2"}') == 1


async def test_k1_a_killed_engine_has_no_device_credit_and_only_the_ram_that_is_said_again(tmp_path: Path) -> None:
    async with routed(tmp_path, policy="CacheAware") as bench:
        pod = bench.pods[1]
        await say(bench, pod, 1, **rows("device"))
        await say(bench, pod, 2, **rows("device", text=TEXT + "more"))
        assert (await route(bench))["reason"] == "prefix"
        port = pod.engine_port
        await pod.stop_engine()
        await say(bench, pod, 0, type="epoch", tier="device", epoch=None)
        await pod.start_engine(port)  # the same name and address
        await until(lambda: len(bench.router.fleet.ready()) == 2)
        await pod.say(type="epoch", tier="device", epoch="d2")
        assert (await route(bench))["tokens"] == "0"
        await say(bench, pod, 1, **rows("ram", tokens=320))
        assert await route(bench) == {"pod": "chat-1", "reason": "prefix", "tokens": "320"}
        assert (await route(bench, TEXT + "more"))["tokens"] in ("0", "320")


async def test_k1_an_address_reused_by_another_pod_has_no_credit(tmp_path: Path) -> None:
    async with routed(tmp_path, policy="CacheAware") as bench:
        old = bench.pods[1]
        await say(bench, old, 1, **rows("device"))
        assert (await route(bench))["pod"] == "chat-1"
        old.name = "chat-9"
        bench.write_pods(bench.pods[0], old)
        await until(lambda: {member.pod.name for member in bench.router.fleet.ready()} == {"chat-0", "chat-9"})
        assert num_rows(bench, "chat-9") == 0
        assert (await route(bench))["tokens"] == "0"
        assert await bench.metric('pagoda_router_hint_rows{pod="chat-1"}') == 0


async def test_k1_a_name_at_a_new_address_has_no_credit(tmp_path: Path) -> None:
    async with routed(tmp_path, policy="CacheAware") as bench:
        await say(bench, bench.pods[1], 1, **rows("device"))
        replacement = FakePod("chat-1")
        await replacement.start()
        bench.write_pods(bench.pods[0], replacement)
        address = replacement.record["engine"]
        await until(lambda: address in {member.pod.engine for member in bench.router.fleet.ready()})
        assert (await route(bench))["tokens"] == "0"
        await replacement.stop()


async def test_a_lost_stream_takes_the_credit_and_a_new_one_brings_back_what_it_says(tmp_path: Path) -> None:
    async with routed(tmp_path, policy="CacheAware") as bench:
        pod = bench.pods[0]
        await say(bench, pod, 1, **rows("ram"))
        pod.snapshot = [rows("ram", tokens=480)]
        await pod.cut_streams()
        await until(lambda: pod.num_streams == 2)
        await until(lambda: num_rows(bench, "chat-0") == 1)
        assert await route(bench) == {"pod": "chat-0", "reason": "prefix", "tokens": "480"}


async def test_a_gap_opens_the_stream_anew(tmp_path: Path) -> None:
    async with routed(tmp_path, policy="CacheAware") as bench:
        pod = bench.pods[0]
        pod.snapshot = [rows("device")]
        await pod.say(type="beat", sequence=99)
        await until(lambda: pod.num_streams == 2)
        await until(lambda: num_rows(bench, "chat-0") == 1)


async def test_a_silent_stream_is_opened_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints_module, "SILENCE_SECONDS", 0.3)
    async with routed(tmp_path, num_pods=1, policy="CacheAware") as bench:
        await until(lambda: bench.pods[0].num_streams >= 2)


async def test_k13_without_hints_requests_go_by_load_and_the_reason_is_counted(tmp_path: Path) -> None:
    async with routed(tmp_path, policy="CacheAware") as bench:
        bench.pods[0].head["digest_version"] = bench.pods[1].head["digest_version"] = DIGEST_VERSION + 1
        for pod in bench.pods:
            await pod.cut_streams()
        await until(lambda: {m.hints.degraded for m in bench.router.fleet.ready()} == {"digest_version"})
        assert (await route(bench))["reason"] == "digest_version"
        for pod in bench.pods:
            await pod.stop_sidecar()
        await until(lambda: {m.hints.degraded for m in bench.router.fleet.ready()} == {"no_hints"})
        assert (await route(bench))["reason"] == "no_hints"
        assert await bench.metric('pagoda_router_decisions_total{reason="digest_version"}') == 1
        assert await bench.metric('pagoda_router_decisions_total{reason="no_hints"}') == 1


async def test_a_prefix_of_one_tenant_is_nothing_to_another(tmp_path: Path) -> None:
    tenants = {"tenants": [{"name": name, "keyHashes": [key_hash(name)]} for name in ("acme", "other")]}
    tmp_path.joinpath("tenants.json").write_text(json.dumps(tenants))
    async with routed(tmp_path, policy="CacheAware", tenants_dir=tmp_path) as bench:
        await say(bench, bench.pods[1], 1, **rows("device", scope="tenant:acme"))
        assert (await route(bench, Authorization="Bearer acme"))["reason"] == "prefix"
        assert (await route(bench, Authorization="Bearer other"))["reason"] == "least_loaded"
        assert (await route(bench, Authorization="Bearer wrong"))["reason"] == "unknown_key"
        assert (await route(bench))["reason"] == "unknown_key"
        assert bench.pods[0].bodies or bench.pods[1].bodies  # sent on: to refuse it is the engine's part


async def test_a_body_without_a_canonical_stream_goes_by_load(tmp_path: Path) -> None:
    async with routed(tmp_path, policy="CacheAware") as bench:
        for body in (b"{}", b'{"messages": [{"content": [{"type": "image_url"}]}]}', b'{"prompt": NaN, "tools": NaN}'):
            async with bench.client.post(f"{bench.url}/v1/chat/completions", data=body) as response:
                assert "reason=no_digests" in response.headers["x-pagoda-route"]


async def test_work_is_held_while_a_request_runs(tmp_path: Path) -> None:
    async with routed(tmp_path, policy="CacheAware") as bench:
        for pod in bench.pods:
            pod.behaviour = fakes.hold
        async with bench.chat(TEXT, stream=True) as first, bench.chat(TEXT, stream=True) as second:
            names = {response.headers["x-pagoda-route"].split(";")[0] for response in (first, second)}
            assert names == {"pod=chat-0", "pod=chat-1"}
            pods = [member.pod for member in bench.router.fleet.ready()]
            assert all(bench.router.book.outstanding_seconds(pod) > 0 for pod in pods)
        await until(lambda: not any(bench.router.book.outstanding_seconds(pod) for pod in pods))


@pytest.mark.parametrize("policy", ["CacheAware", "LeastLoaded"])
async def test_work_that_a_pod_reports_of_others_is_avoided(tmp_path: Path, policy: str) -> None:
    async with routed(tmp_path, policy=policy) as bench:
        load = {"outstanding_seconds": 50.0, "prefill_tokens_per_second": 400.0, "free_work_seconds": 1.0}
        await bench.pods[0].say(type="load", num_running=3, num_waiting=9, **load)
        await until(lambda: any(member.hints.others_seconds() for member in bench.router.fleet.ready()))
        assert {(await route(bench))["pod"] for _ in range(6)} == {"chat-1"}


async def test_our_own_work_in_a_report_is_not_counted_twice_nor_after_its_end(tmp_path: Path) -> None:
    async with routed(tmp_path, policy="CacheAware") as bench:
        pod = bench.pods[0]
        pod.behaviour = bench.pods[1].behaviour = fakes.hold
        await say(bench, pod, 1, **rows("device"))
        member = next(member for member in bench.router.fleet.ready() if member.pod.name == pod.name)

        async def report(prefill: float) -> None:
            load = {"outstanding_seconds": 50.0, "prefill_tokens_per_second": prefill, "free_work_seconds": 1.0}
            await pod.say(type="load", num_running=1, num_waiting=0, **load)
            await until(
                lambda: (
                    member.hints.report is not None and member.hints.report.load.prefill_tokens_per_second == prefill
                )
            )

        async with bench.chat(TEXT, stream=True) as response:
            assert response.headers["x-pagoda-route"].startswith("pod=chat-0;reason=prefix")
            await report(400.0)
            assert member.hints.others_seconds() == 0.0
        await until(lambda: bench.router.book.num_outstanding(member.pod) == 0)
        await report(401.0)
        assert member.hints.others_seconds() == 0.0
