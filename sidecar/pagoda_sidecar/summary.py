"""`GET /ready` for a startup probe, and `GET /v1/summary` for whoever looks at many pods now and then.

Rules: a summary has at most 16 KiB, whatever the pod holds; what takes long of it, the hottest digests, is looked for
in a thread and kept for a while, so that a scrape costs the control loop a millisecond or two.
"""

import asyncio
import heapq
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from pagoda_protocol.marks import nodes_mark
from pagoda_protocol.tier import PROTOCOL_VERSION
from pagoda_sidecar.arena.layout import StoredDigest
from pagoda_sidecar.digest_table import decayed, hotness
from pagoda_sidecar.hints import Row
from pagoda_sidecar.sidecar import Sidecar

SUMMARY_VERSION = 1
MAX_BYTES = 16 * 1024
MAX_HITS = 100
KEEP_SECONDS = 10.0
MAX_REASON = 120
# Of the nodes at most so many bytes are told, those that are down first
MAX_NODE_BYTES = 6 * 1024

Hit = tuple[str, int, str, float]


def add_state_routes(app: web.Application, sidecar: Sidecar) -> None:
    """Add both routes to `app`."""
    summary = Summary(sidecar)

    async def ready(_: web.Request) -> web.Response:
        if sidecar.off_reason or sidecar.keeper.is_decided:
            return web.json_response({"status": "ready", "reason": sidecar.ram_off_reason})
        return web.json_response({"status": "not ready", "reason": sidecar.ram_off_reason}, status=503)

    async def summarize(_: web.Request) -> web.Response:
        return web.Response(text=await summary.text(), content_type="application/json")

    app.router.add_get("/ready", ready)
    app.router.add_get("/v1/summary", summarize)


class Summary:
    """One sidecar's summary. Belongs to the control loop."""

    def __init__(self, sidecar: Sidecar, clock: Callable[[], float] = time.monotonic) -> None:
        self._sidecar = sidecar
        self._clock = clock
        self._looking = asyncio.Lock()
        self._hits: list[Hit] = []
        self._looked_at: float | None = None

    async def text(self) -> str:
        """Return the JSON document."""
        hits = await self._hottest()
        document = {**self._state(await self._sidecar.pool.look()), "hits": hits}
        while len(text := json.dumps(document, separators=(",", ":"))) > MAX_BYTES:
            document["hits"] = hits = hits[: len(hits) // 2]
        return text

    async def _hottest(self) -> list[Hit]:
        async with self._looking:
            if self._looked_at is None or self._clock() - self._looked_at >= KEEP_SECONDS:
                self._looked_at = self._clock()
                hints, table = self._sidecar.hints, self._sidecar.table
                self._hits = await asyncio.to_thread(hottest, hints.published(), table.get, time.time())
            return self._hits

    def _state(self, nodes: Mapping[str, str]) -> dict[str, Any]:
        sidecar = self._sidecar
        attachment = sidecar.attachment
        pool = _tier(sidecar.pool.is_configured, sidecar.pool_off_reason)
        return {
            "version": SUMMARY_VERSION,
            "epochs": sidecar.hints.epochs,
            "hit_ratio": None if attachment is None else attachment.hit_ratio,
            "namespace": None if attachment is None else attachment.request.namespace.hex(),
            "block_tokens": None if attachment is None else attachment.request.block_tokens,
            "protocol": PROTOCOL_VERSION,
            "tiers": {
                "ram": _tier(sidecar.keeper.is_configured, sidecar.ram_off_reason),
                "disk": _tier(sidecar.disk.is_configured, sidecar.disk_off_reason),
                "pool": {**pool, "list": nodes_mark(nodes), "nodes": _nodes(nodes)},
            },
            "state": None if attachment is None else attachment.state,
        }


def hottest(published: Mapping[bytes, Row], find: Callable[[bytes], StoredDigest | None], now: float) -> list[Hit]:
    """Return the hottest of the published rows, with their heat by `now`; safe in a thread beside the control loop."""
    found = ((find(digest), row.tier) for digest, row in published.items())
    there = ((hotness(stored), stored, tier) for stored, tier in found if stored is not None)
    best = heapq.nlargest(MAX_HITS, there, key=lambda one: one[0])
    return [(stored.digest.hex(), stored.tokens, tier, round(decayed(stored, int(now)), 2)) for _, stored, tier in best]


def _tier(is_configured: bool, off_reason: str) -> dict[str, Any]:
    if not is_configured:
        return {"state": "none", "reason": ""}
    return {"state": "off" if off_reason else "on", "reason": off_reason[:MAX_REASON]}


def _nodes(problems: Mapping[str, str]) -> dict[str, Any]:
    nodes: dict[str, Any] = {}
    num_bytes = 0
    for name in sorted(problems, key=lambda name: (not problems[name], name)):
        reason = problems[name][:MAX_REASON]
        nodes[name] = {"state": "down" if reason else "up", "reason": reason}
        num_bytes += len(json.dumps({name: nodes[name]}))
        if num_bytes > MAX_NODE_BYTES:
            del nodes[name]
            break
    return nodes
