"""The hint stream against a reader written from docs/design.md alone."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from pagoda_sidecar import hints as hints_module
from pagoda_sidecar.digest_table import DigestTable
from pagoda_sidecar.hint_stream import add_hint_routes
from pagoda_sidecar.hints import Head, Hints, numbered

HEAD = Head(("m",), "ab" * 16, 16)


def address(value: int) -> bytes:
    return value.to_bytes(32, "big")


def digest(value: int) -> bytes:
    return value.to_bytes(16, "big")


class Reader:
    """What a router knows, as the page tells it to."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[int, str]] = {}
        self.head: dict[str, Any] = {}
        self.epochs: dict[str, Any] = {}
        self.sequence = 0
        self.is_live = False
        self.loads: list[dict[str, Any]] = []

    def read(self, text: str | bytes) -> None:
        message = json.loads(text)
        kind = message["type"]
        assert message["sequence"] == (0 if kind == "head" else self.sequence + 1), "a gap"
        self.sequence = message["sequence"]
        if kind == "head":
            self.head, self.epochs = message, dict(message["epochs"])
        elif kind == "rows":
            for name in message["drop"]:
                self.rows.pop(name, None)
            for name, tokens, tier, _ in message["set"]:
                self.rows[name] = (tokens, tier)
        elif kind == "epoch":
            self.epochs[message["tier"]] = message["epoch"]
            self.rows = {name: row for name, row in self.rows.items() if row[1] != message["tier"]}
        elif kind == "live":
            self.is_live = True
        elif kind == "load":
            self.loads.append(message)
        else:
            assert kind == "beat"


class Pod:
    def __init__(self) -> None:
        self.in_ram: set[bytes] = set()
        self.on_disk: set[bytes] = set()
        self.hints = Hints(
            DigestTable(lambda: 1000.0), lambda where: where in self.in_ram, lambda where: where in self.on_disk
        )

    def ram(self, added: tuple[int, ...] = (), removed: tuple[int, ...] = ()) -> None:
        self.in_ram |= {address(value) for value in added}
        self.in_ram -= {address(value) for value in removed}
        for value in (*added, *removed):
            self.hints.mark_address(address(value))


class Connected:
    """A reader on the queue itself, without HTTP."""

    def __init__(self, pod: Pod) -> None:
        self.reader = Reader()
        self.subscriber, head, snapshot = pod.hints.subscribe()
        self.reader.read(json.dumps(head))
        self.take(snapshot)

    def take(self, lines: list[str]) -> None:
        for text in lines:
            self.reader.read(numbered(text, self.reader.sequence + 1))

    async def rows(self) -> dict[str, tuple[int, str]]:
        await asyncio.sleep(0)
        self.take(await self.subscriber.lines(0.01))
        return self.reader.rows


def key(value: int) -> str:
    return digest(value).hex()


async def test_a_row_is_published_only_while_its_block_is_resident_and_by_its_best_tier() -> None:
    pod = Pod()
    pod.hints.engine_attached(HEAD, "e1")
    reader = Connected(pod)
    assert reader.reader.head["models"] == ["m"]
    pod.hints.record(digest(1), 16, address(1))
    assert await reader.rows() == {}
    pod.ram(added=(1,))
    assert await reader.rows() == {key(1): (16, "ram")}
    pod.hints.set_device([address(1)], [])
    assert await reader.rows() == {key(1): (16, "device")}
    pod.hints.set_device([], [address(1)])
    assert await reader.rows() == {key(1): (16, "ram")}
    pod.ram(removed=(1,))
    assert await reader.rows() == {}


async def test_the_end_of_an_engine_voids_the_device_at_once_and_republishes_ram() -> None:
    pod = Pod()
    pod.hints.engine_attached(HEAD, "e1")
    pod.hints.set_ram_epoch("r1")
    reader = Connected(pod)
    for value in (1, 2):
        pod.hints.record(digest(value), 16 * value, address(value))
    pod.hints.set_device([address(1), address(2)], [])
    pod.ram(added=(2,))
    assert await reader.rows() == {key(1): (16, "device"), key(2): (32, "device")}
    pod.hints.engine_detached()
    lines = await reader.subscriber.lines(0.01)
    kinds = [json.loads(numbered(text, 0))["type"] for text in lines]
    assert kinds == ["epoch", "rows"], "in the same turn of the loop"
    reader.take(lines)
    assert reader.reader.rows == {key(2): (32, "ram")}
    assert reader.reader.epochs == {"device": None, "ram": "r1", "disk": None}
    assert Connected(pod).reader.rows == {key(2): (32, "ram")}


async def test_a_block_on_disk_is_a_row_of_its_own_tier_until_the_disk_is_off() -> None:
    pod = Pod()
    pod.hints.engine_attached(HEAD, "e1")
    pod.hints.set_disk_epoch("d1")
    reader = Connected(pod)
    pod.hints.record(digest(1), 16, address(1))
    pod.ram(added=(1,))
    pod.on_disk.add(address(1))
    assert await reader.rows() == {key(1): (16, "ram")}
    pod.ram(removed=(1,))
    assert await reader.rows() == {key(1): (16, "disk")}
    pod.on_disk.clear()
    pod.hints.set_disk_epoch(None)
    assert await reader.rows() == {}
    assert reader.reader.epochs["disk"] is None
    pod.on_disk.add(address(1))
    pod.hints.set_disk_epoch("d1")
    assert await reader.rows() == {key(1): (16, "disk")}


async def test_a_lost_arena_voids_its_rows() -> None:
    pod = Pod()
    pod.hints.set_ram_epoch("r1")
    pod.ram(added=(1,))
    pod.hints.record(digest(1), 16, address(1))
    reader = Connected(pod)
    assert await reader.rows() == {key(1): (16, "ram")}
    pod.in_ram.clear()
    pod.hints.set_ram_epoch(None)
    assert await reader.rows() == {}
    assert reader.reader.epochs["ram"] is None


async def test_a_stream_whose_head_is_no_longer_true_ends_and_others_go_on() -> None:
    pod = Pod()
    before = Connected(pod)
    pod.hints.engine_attached(HEAD, "e1")
    assert before.subscriber.is_ended
    same = Connected(pod)
    pod.hints.engine_detached()
    pod.hints.engine_attached(HEAD, "e2")
    assert not same.subscriber.is_ended
    await same.rows()
    assert same.reader.epochs["device"] == "e2"
    pod.hints.engine_attached(Head(("other",), "ab" * 16, 16), "e3")
    assert same.subscriber.is_ended


async def test_a_reader_that_is_too_far_behind_is_dropped_and_memory_stays_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hints_module, "MAX_QUEUED_BYTES", 200_000)
    pod = Pod()
    slow, fast = Connected(pod), Connected(pod)
    rows = range(1000)
    for turn in range(2 * hints_module.MAX_QUEUED_BYTES // 40_000):
        pod.in_ram = {address(value) for value in rows} if turn % 2 else set()
        for value in rows:
            pod.hints.record(digest(value), turn, address(value))
        pod.hints.flush()
        await fast.rows()
    assert slow.subscriber.is_ended
    assert not fast.subscriber.is_ended
    assert await slow.subscriber.lines(0.01) == []


async def test_over_http_snapshot_then_live_then_deltas_and_beats() -> None:
    pod = Pod()
    pod.hints.engine_attached(HEAD, "e1")
    pod.hints.set_device([address(value) for value in range(600)], [])
    for value in range(600):
        pod.hints.record(digest(value), value, address(value))
    app = web.Application()
    add_hint_routes(app, pod.hints)
    async with TestClient(TestServer(app)) as http:
        async with http.get("/v1/prefixes?follow=false") as answer:
            assert answer.headers["Content-Type"] == "application/x-ndjson"
            once = Reader()
            async for text in answer.content:
                once.read(text)
            assert once.is_live
            assert len(once.rows) == 600
        async with http.get("/v1/prefixes", timeout=aiohttp.ClientTimeout(10)) as answer:
            reader = Reader()
            while not reader.is_live:
                reader.read(await answer.content.readline())
            assert reader.rows == once.rows
            pod.hints.report_load({"num_running": 1})
            pod.hints.set_device([], [address(5)])
            while not (reader.loads and len(reader.rows) == 599):
                reader.read(await answer.content.readline())
            started = asyncio.get_running_loop().time()
            assert json.loads(await answer.content.readline())["type"] == "beat"
            assert asyncio.get_running_loop().time() - started < 1.5
            pod.hints.close()
            assert (await answer.content.read())[-1:] in (b"", b"\n"), "the stream ends when the sidecar does"
