"""An API server that knows pods alone: lists in pages, watches with history, and fails as it is told to."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.router.fakes import FakePod
from tests.support.ports import free_port

NAMESPACE, SELECTOR, TOKEN = "models", "pagoda-kv.io/pool=chat,pagoda-kv.io/part=engine", "router-token"


def pod_document(pod: FakePod, uid: str, **changes: Any) -> dict[str, Any]:
    """The object of a pod that is ready, in Kubernetes' words."""
    return {
        "metadata": {"name": pod.name, "uid": uid, "annotations": {}, **changes.get("metadata", {})},
        "spec": {
            "initContainers": [{"name": "sidecar", "ports": [{"name": "sidecar", "containerPort": pod.sidecar_port}]}],
            "containers": [{"name": "engine", "ports": [{"name": "http", "containerPort": pod.engine_port}]}],
        },
        "status": {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "containerStatuses": [{"name": "engine", "ready": True}],
            **changes.get("status", {}),
        },
    }


class FakeKubernetes:
    """See the head of this file. `status` other than 200 is what every question gets."""

    def __init__(self) -> None:
        self.port = free_port()
        self.status = 200
        self.watch_status = 200
        self.page = 1000
        self.num_lists = self.num_watches = 0
        self.oldest = 0  # versions before it are gone
        self._version = 0
        self._pods: dict[str, dict[str, Any]] = {}
        self._history: list[tuple[int, str, dict[str, Any]]] = []
        self._changed = asyncio.Condition()
        self._cut = asyncio.Event()
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/{namespace}/pods", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def stop(self) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await self.cut()
            await runner.cleanup()

    async def cut(self) -> None:
        """End every watch in the middle."""
        cut, self._cut = self._cut, asyncio.Event()
        cut.set()
        async with self._changed:
            self._changed.notify_all()

    async def put(self, document: dict[str, Any]) -> None:
        uid = document["metadata"]["uid"]
        await self._note("MODIFIED" if uid in self._pods else "ADDED", document)
        self._pods[uid] = document

    async def delete(self, uid: str) -> None:
        await self._note("DELETED", self._pods.pop(uid))

    async def bookmark(self) -> None:
        await self._note("BOOKMARK", {"metadata": {}})

    async def _note(self, kind: str, document: dict[str, Any]) -> None:
        self._version += 1
        document["metadata"]["resourceVersion"] = str(self._version)
        self._history.append((self._version, kind, document))
        async with self._changed:
            self._changed.notify_all()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        assert request.match_info["namespace"] == NAMESPACE
        assert request.query["labelSelector"] == SELECTOR
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        is_watch = request.query.get("watch") == "true"
        status = self.watch_status if is_watch and self.status == 200 else self.status
        if status != 200:
            message = f'pods is forbidden: User "router" cannot list: {status}'
            return web.json_response({"kind": "Status", "code": status, "message": message}, status=status)
        return await self._watch(request) if is_watch else self._list(request)

    def _list(self, request: web.Request) -> web.Response:
        self.num_lists += 1
        limit = min(self.page, int(request.query["limit"]))
        first = int(request.query.get("continue", "0"))
        pods = sorted(self._pods.values(), key=lambda pod: pod["metadata"]["name"])
        rest = str(first + limit) if first + limit < len(pods) else ""
        metadata = {"resourceVersion": str(self._version), "continue": rest}
        return web.json_response({"kind": "PodList", "metadata": metadata, "items": pods[first : first + limit]})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.num_watches += 1
        response = web.StreamResponse()
        await response.prepare(request)
        cut, version = self._cut, int(request.query["resourceVersion"])
        if version < self.oldest:
            await self._write(response, "ERROR", {"kind": "Status", "code": 410, "message": "too old"})
            return response
        while not cut.is_set():
            for number, kind, document in list(self._history):
                if number > version:
                    version = number
                    await self._write(response, kind, document)
            async with self._changed:
                if version == self._version and not cut.is_set():
                    await self._changed.wait()
        if request.transport is not None:
            request.transport.abort()
        return response

    async def _write(self, response: web.StreamResponse, kind: str, document: dict[str, Any]) -> None:
        await response.write(json.dumps({"type": kind, "object": document}).encode() + b"\n")


@contextlib.asynccontextmanager
async def fake_kubernetes(folder: Path) -> AsyncIterator[tuple[FakeKubernetes, Path]]:
    """Run one, and write a kubeconfig that leads there."""
    server = FakeKubernetes()
    await server.start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fake",
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "router"}}],
        "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{server.port}"}}],
        "users": [{"name": "router", "user": {"token": TOKEN}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    try:
        yield server, path
    finally:
        await server.stop()
