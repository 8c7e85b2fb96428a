"""The two doors of played engine pods, each pod at a loopback address of its own."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from aiohttp import web

from pagoda_operator.names import ENGINE_PORT, SIDECAR_PORT

NUM_PODS = 40  # of all parts, over a whole story
_PROOF = {"generated": True, "tiers": {"ram": "ok", "disk": "none", "pool": "ok"}}
_SUMMARY = {
    "version": 1,
    "epochs": {"device": "a" * 32, "ram": "b" * 32, "disk": None},
    "hit_ratio": 0.81,
    "namespace": "ab" * 32,
    "block_tokens": 16,
    "protocol": 2,
    "tiers": {
        "ram": {"state": "on", "reason": ""},
        "disk": {"state": "none", "reason": ""},
        "pool": {"state": "on", "reason": "", "nodes": {"chat-memcached-0": {"state": "up", "reason": ""}}},
    },
    "hits": [["c" * 32, 4096, "ram", 8]],
}


@dataclass
class Doors:
    """Where pods answer, and what."""

    generation: Callable[[], int]
    """Of the live settings that the engines follow."""
    num_asked: int = 0
    addresses: dict[str, str] = field(default_factory=dict)

    def address_of(self, pod: str) -> str:
        """Return a pod's address, the same each time."""
        return self.addresses.setdefault(pod, _address(len(self.addresses)))

    async def ready(self, _: web.Request) -> web.Response:
        """Answer as an engine that has proved itself."""
        self.num_asked += 1
        return web.json_response({"status": "ready", "generation": self.generation(), "proof": _PROOF})

    async def summary(self, _: web.Request) -> web.Response:
        """Answer as a sidecar all of whose tiers work."""
        return web.Response(text=json.dumps(_SUMMARY), content_type="application/json")


@contextlib.asynccontextmanager
async def open_doors(generation: Callable[[], int]) -> AsyncIterator[Doors]:
    """Answer for every pod while the context is open."""
    doors = Doors(generation)
    application = web.Application()
    application.router.add_get("/ready", doors.ready)
    application.router.add_get("/v1/summary", doors.summary)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        for index in range(NUM_PODS):
            for port in (ENGINE_PORT, SIDECAR_PORT):
                await web.TCPSite(runner, _address(index), port).start()
        yield doors
    finally:
        await runner.cleanup()


def _address(index: int) -> str:
    return f"127.79.0.{index + 1}"
