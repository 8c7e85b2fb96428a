"""The programs in the surroundings of a restricted pod: not root, no home, nothing to write to but /tmp and the volume.

Secrets and ConfigMaps come as Kubernetes mounts them, and change as it changes them.
"""

import contextlib
import http.client
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pagoda_protocol.pool.arguments import (
    EnginePlacement,
    RouterPlacement,
    SidecarPlacement,
    engine_command,
    router_command,
    sidecar_command,
)
from pagoda_protocol.pool.spec import parse_pool
from pagoda_protocol.tenants import digest_secret, key_hash
from tests.sidecar.support import wait_until
from tests.support.checkpoints import tiny_checkpoint
from tests.support.in_a_pod import POD_ENVIRONMENT, USER, empty_dir, in_a_pod, mount, needs_a_pod, volumes
from tests.support.memcached import needs_memcached, running_memcached
from tests.support.pods import manifest
from tests.support.ports import free_port

HOST = "127.0.0.1"
SECONDS = 400.0
__all__ = ["needs_a_pod"]


def tenants(key: str) -> dict[str, bytes]:
    return {"tenants.json": json.dumps({"tenants": [{"name": "acme", "keyHashes": [key_hash(key)]}]}).encode()}


def settings(generation: int, nodes: Sequence[str], pods: Sequence[dict[str, str]]) -> dict[str, bytes]:
    live = {"generation": generation, "idleSeconds": 20, "sharedPrefixes": []}
    listed = [{"name": f"mc-{index}", "address": address} for index, address in enumerate(nodes)]
    files = {"live.json": live, "pool-nodes.json": {"nodes": listed}, "pods.json": {"pods": list(pods)}}
    return {name: json.dumps(content).encode() for name, content in files.items()}


def ask(port: int, path: str, key: str = "", body: Any = None) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    try:
        data = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, data, {"Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"{}")
    except OSError:
        return 0, {}
    finally:
        connection.close()


class Pod:
    """The three programs of a pool of one pod, and what is mounted into them."""

    def __init__(self, folder: Path, node: str) -> None:
        self.folder = folder
        self.node = node
        self.ports = {name: free_port() for name in ("engine", "sidecar", "router")}
        self.volume, self.disk = empty_dir(folder / "volume"), empty_dir(folder / "disk")
        secret = secrets.token_bytes(32)
        mount(folder / "secret", {"pool": secret, "digest": digest_secret(secret)})
        mount(folder / "router-secret", {"digest": digest_secret(secret)})
        mount(folder / "auth", {"username": b"pagoda", "password": b"secret"})
        mount(folder / "tenants", tenants("first"))
        self.show(1, [node])
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def show(self, generation: int, nodes: Sequence[str]) -> None:
        """Mount the next version of the live settings."""
        pod = {"name": "chat-0", **{name: f"{HOST}:{self.ports[name]}" for name in ("engine", "sidecar")}}
        mount(self.folder / "settings", settings(generation, nodes, [pod]), mode=0o644)

    def start(self) -> None:
        (self.folder / "model").mkdir()
        model = tiny_checkpoint(self.folder / "model")
        for path in model.iterdir():
            path.chmod(0o644)
        pool = parse_pool(manifest(source={"local": {"path": str(model)}}, ram="32Mi", disk="64Mi", kv_memory="4Mi"))
        secret, live, keys = (str(self.folder / name) for name in ("secret", "settings", "tenants"))
        sidecar = SidecarPlacement("chat-0", HOST, self.ports["sidecar"], str(self.volume), secret, live, keys,
                                   str(self.disk), pool_auth_dir=str(self.folder / "auth"))  # fmt: skip
        engine = EnginePlacement("chat-0", HOST, self.ports["engine"], secret, 1, str(self.volume), keys, live)
        router = RouterPlacement("router", HOST, self.ports["router"], str(self.folder / "router-secret"), live, keys)
        for name, command, writable in (
            ("sidecar", sidecar_command(pool, sidecar, sys.executable), [self.volume, self.disk]),
            ("engine", engine_command(pool, engine, sys.executable), [self.volume]),
            ("router", router_command(pool, router, sys.executable), []),
        ):
            log = (self.folder / f"{name}.log").open("wb")
            with log:
                self.processes[name] = subprocess.Popen(
                    in_a_pod(command.argv, writable), env={**POD_ENVIRONMENT, **command.environment}, stderr=log
                )
            if name == "sidecar":  # its startup probe holds the engine back
                wait_until(lambda: self.ask("sidecar", "/ready")[0] == 200, SECONDS, "the sidecar's probe")

    def ask(self, name: str, path: str) -> tuple[int, dict[str, Any]]:
        """Ask one of the programs, which must not have ended."""
        assert self.processes[name].poll() is None, f"the {name} has ended"
        return ask(self.ports[name], path)

    def proof(self) -> dict[str, str]:
        """What the engine has shown of its tiers."""
        return (self.ask("engine", "/ready")[1].get("proof") or {}).get("tiers") or {}

    def complete(self, key: str) -> int:
        body = {"model": "test-model", "prompt": "the the the", "max_tokens": 4}
        return ask(self.ports["router"], "/v1/completions", key, body)[0]

    def end(self) -> list[int]:
        statuses = []
        for name in ("router", "engine", "sidecar"):
            self.processes[name].terminate()
            statuses.append(self.processes[name].wait(60))
        return statuses

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in self.folder.glob("*.log"))


@pytest.fixture
def pod(needs_a_pod: None) -> Iterator[Pod]:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(volumes())
        users = folder / "users"
        users.write_text("pagoda:secret\n")
        node = stack.enter_context(running_memcached(arguments=["-Y", str(users)], log_in=b"pagoda secret"))
        pod = Pod(folder, node.address)
        try:
            yield pod
        finally:
            for process in pod.processes.values():
                process.kill()
                process.wait()
            sys.stderr.write(pod.logs())  # pytest shows it beside a failure


@needs_memcached
@pytest.mark.timeout(1200)
def test_a_pod_serves_and_follows_its_mounts_without_root_a_home_or_a_place_to_write(pod: Pod) -> None:
    pod.start()
    everything = {"ram": "ok", "disk": "ok", "pool": "ok"}
    wait_until(lambda: pod.proof() == everything, SECONDS, "the engine's proof")
    wait_until(lambda: pod.complete("first") == 200, SECONDS, "an answer through the router")
    assert pod.complete("second") == 401
    assert (pod.volume / "tier.sock").stat().st_uid == USER
    assert (pod.volume / "arena").stat().st_uid == USER

    mount(pod.folder / "tenants", tenants("second"))
    wait_until(lambda: pod.complete("second") == 200, 30, "the next version of the tenants")
    wait_until(lambda: pod.complete("first") == 401, 30, "the end of the first key")
    mount(pod.folder / "auth", {"username": b"pagoda", "password": b"wrong"})
    pod.show(2, [pod.node])
    wait_until(lambda: ask(pod.ports["engine"], "/ready")[1]["generation"] == 2, 30, "the next generation")
    pod.show(3, [])
    wait_until(lambda: pod.proof() == {**everything, "pool": "none"}, 30, "the next list of nodes")

    assert pod.end() == [0, 0, 0]
    assert "Traceback" not in pod.logs()
    written = [path for path in pod.folder.rglob("*") if path.lstat().st_uid == USER]
    assert {path.parent for path in written} == {pod.volume, pod.disk}
    assert not [name for name in os.listdir(pod.folder) if name.endswith(".pyc")]
