"""Our pool client against pymemcache: record bytes per second on loopback, one memcached, one process, interleaved.

Both move the same records. Ours does what the sidecar does with them: checks the payload before it is sent, reads into
memory lent by the caller, and verifies every header and payload that arrives. pymemcache sets and gets one value each
(`get_many` for reading, its fastest way) and verifies nothing.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xxhash
from pymemcache.client.base import Client

from bench.report import Goal, Result
from pagoda_protocol.records import RecordHeader
from pagoda_runtime.metrics import Metrics
from pagoda_sidecar.pool import MemcachedPool, PoolCounters, PoolNode
from tests.support.memcached import Memcached, running_memcached

_NAMESPACE = bytes(range(32))
_SET_GOAL, _GET_GOAL = 3.0, 1.5
_STORES_AT_ONCE = 8  # what the sidecar has under way at a time


def run(quick: bool, folder: Path) -> Result:
    """Measure; a row per payload size, GB/s as medians over the rounds, ratios as medians of each round's."""
    rounds, total_bytes = (15, 32 << 20) if quick else (31, 96 << 20)
    sizes = (368_640, 737_280) if quick else (65_536, 368_640, 737_280, 4 << 20)
    with running_memcached(memory_mib=1024, item_limit="64m", threads=2) as node:
        rows = [asyncio.run(_measure(node, size, total_bytes // size, rounds)) for size in sizes]
    main = next(row for row in rows if row["payload_bytes"] == 368_640)  # one block of SmolLM2-135M in bf16
    goals = [
        Goal(f"pool {verb} ÷ pymemcache {verb}, one block", main[f"{verb}_ratio"], goal)
        for verb, goal in (("set", _SET_GOAL), ("get", _GET_GOAL))
    ]
    return Result("pool", rows, goals, ("payload_bytes", "get_ratio"))


async def _measure(node: Memcached, size: int, count: int, rounds: int) -> dict[str, Any]:
    payloads = [memoryview(os.urandom(size)) for _ in range(count)]
    headers = [_header(index, payload) for index, payload in enumerate(payloads)]
    slots = [memoryview(bytearray(size)) for _ in range(count)]
    peer = Client(("127.0.0.1", node.port), no_delay=True)
    pool = MemcachedPool((PoolNode("bench", node.address),), PoolCounters(Metrics()))
    pool.set_namespace(_NAMESPACE)
    seconds: dict[str, list[float]] = {name: [] for name in ("set", "peer_set", "get", "peer_get")}
    try:
        for _ in range(rounds):
            seconds["set"].append(await _our_sets(pool, headers, payloads))
            seconds["peer_set"].append(_peer_sets(peer, payloads))
            seconds["get"].append(await _our_gets(pool, headers, slots))
            seconds["peer_get"].append(_peer_gets(peer, count))
        assert slots == payloads, "what was read is not what was written"
    finally:
        peer.close()
        await pool.close()
    rates = {name: size * count / statistics.median(times) / 1e9 for name, times in seconds.items()}
    ratios = {
        f"{verb}_ratio": statistics.median(
            peer / ours for ours, peer in zip(seconds[verb], seconds[f"peer_{verb}"], strict=True)
        )
        for verb in ("set", "get")
    }
    row: dict[str, Any] = {"payload_bytes": size, "records": count}
    row |= {f"{name}_gigabytes_per_second": round(rate, 3) for name, rate in rates.items()}
    return row | {name: round(ratio, 2) for name, ratio in ratios.items()}


def _header(index: int, payload: memoryview) -> RecordHeader:
    address = index.to_bytes(32, "little")
    return RecordHeader(
        _NAMESPACE[:16], address, bytes(16), index, 16, len(payload), 0, xxhash.xxh3_128_digest(payload)
    )


async def _our_sets(pool: MemcachedPool, headers: Sequence[RecordHeader], payloads: Sequence[memoryview]) -> float:
    waiting = iter(zip(headers, payloads, strict=True))

    async def sender() -> None:
        for header, payload in waiting:
            assert await pool.store(header, payload), "a store failed"

    start = time.perf_counter()
    await asyncio.gather(*(sender() for _ in range(_STORES_AT_ONCE)))
    return time.perf_counter() - start


async def _our_gets(pool: MemcachedPool, headers: Sequence[RecordHeader], slots: Sequence[memoryview]) -> float:
    ready: list[int] = []
    start = time.perf_counter()
    await pool.fetch([header.address for header in headers], slots, lambda index, _: ready.append(index))
    elapsed = time.perf_counter() - start
    assert len(ready) == len(slots), "a fetch failed"
    return elapsed


def _peer_sets(peer: Client, payloads: Sequence[memoryview]) -> float:
    values = [bytes(payload) for payload in payloads]  # it takes bytes only; not counted against it
    start = time.perf_counter()
    for index, value in enumerate(values):
        assert peer.set(f"peer:{index}", value, noreply=False), "a set failed"
    return time.perf_counter() - start


def _peer_gets(peer: Client, count: int) -> float:
    names = [f"peer:{index}" for index in range(count)]
    start = time.perf_counter()
    found = peer.get_many(names)
    elapsed = time.perf_counter() - start
    assert len(found) == count, "a get failed"
    return elapsed
