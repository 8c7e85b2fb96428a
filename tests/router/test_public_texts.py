"""Registered public texts, as far as they show in decisions: whoever begins with one is sent where it lies."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pagoda_protocol.digests import request_points
from pagoda_protocol.live import LIVE_FILE
from pagoda_protocol.tenants import key_hash
from pagoda_runtime.files import POLL_SECONDS
from tests.router.fakes import KEY, MODEL, TEMPLATE, Bench, routed, until
from tests.router.test_hints import say

PUBLIC = "You are a pagoda. " * 150
NAMES = ("acme", "bolt")


def body_of(question: str) -> dict[str, Any]:
    messages = [{"role": "system", "content": PUBLIC}, {"role": "user", "content": question}]
    return {"model": MODEL, "messages": messages}


def write_live(folder: Path, *texts: str) -> None:
    live = {"generation": 1, "idleSeconds": 1, "sharedPrefixes": texts}
    (folder / "live.json.new").write_text(json.dumps(live))
    (folder / "live.json.new").replace(folder / LIVE_FILE)


async def route(bench: Bench, name: str, question: str) -> str:
    """Return `reason;tokens` of a chat by the tenant `name`."""
    data, headers = json.dumps(body_of(question)).encode(), {"Authorization": f"Bearer {name}"}
    async with bench.client.post(f"{bench.url}/v1/chat/completions", data=data, headers=headers) as response:
        assert response.status == 200
        return response.headers["x-pagoda-route"].partition(";")[2]


async def test_a_public_text_is_found_by_every_tenant_and_what_follows_it_by_its_own(tmp_path: Path) -> None:
    tenants = {"tenants": [{"name": name, "keyHashes": [key_hash(name)]} for name in NAMES]}
    (tmp_path / "tenants.json").write_text(json.dumps(tenants))
    write_live(tmp_path, PUBLIC)
    found = request_points(KEY, "tenant:acme", bytes.fromhex(TEMPLATE), body_of("mine"), (PUBLIC,))
    public, private = [point for point in found if point.is_shared][-1], found[-1]
    assert not private.is_shared
    async with routed(tmp_path, policy="CacheAware", tenants_dir=tmp_path) as bench:
        rows = [[public.digest.hex(), 640, "device", 1.0], [private.digest.hex(), 656, "device", 1.0]]
        await say(bench, bench.pods[1], 2, type="rows", set=rows, drop=[])
        assert await route(bench, "acme", "mine") == "reason=prefix;tokens=656"
        assert await route(bench, "bolt", "mine") == "reason=prefix;tokens=640"
        assert await route(bench, "bolt", "other") == "reason=prefix;tokens=640"


async def test_public_texts_are_read_live_and_a_bad_version_keeps_the_last_good_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    row = request_points(KEY, "anonymous", bytes.fromhex(TEMPLATE), body_of("mine"), (PUBLIC,))[-1].digest
    async with routed(tmp_path, policy="CacheAware") as bench:  # without the file at first
        await say(bench, bench.pods[1], 1, type="rows", set=[[row.hex(), 640, "device", 1.0]], drop=[])
        assert await route(bench, "", "mine") == "reason=least_loaded;tokens=0"
        write_live(tmp_path, PUBLIC)
        async with asyncio.timeout(20 * POLL_SECONDS):
            while await route(bench, "", "mine") != "reason=prefix;tokens=640":  # noqa: ASYNC110 - nothing to wait for
                await asyncio.sleep(POLL_SECONDS / 5)
        (tmp_path / LIVE_FILE).write_text("{")
        await until(lambda: "new version not used" in caplog.text, 20 * POLL_SECONDS)
        assert await route(bench, "", "mine") == "reason=prefix;tokens=640"
