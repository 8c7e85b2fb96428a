"""Real sidecars on real sockets, small chains of blocks, and a pool that fits on the screen."""

import asyncio
import contextlib
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
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import xxhash

from pagoda_protocol.addresses import chain_addresses
from pagoda_protocol.records import RecordHeader
from pagoda_protocol.tenants import digest_secret
from pagoda_sidecar.client import BlockRecord, EngineIdentity, LoadResult, StoreResult, TierClient
from tests.support.ports import free_port
from tests.support.program import dying_with_us

PAYLOAD_BYTES = 10_000
BLOCK_TOKENS = 4
ROOT = b"r" * 32
NAMESPACE = b"n" * 32
MEBIBYTE = 2**20


def identity(namespace: bytes = NAMESPACE, payload_bytes: int = PAYLOAD_BYTES) -> EngineIdentity:
    return EngineIdentity(namespace, payload_bytes, BLOCK_TOKENS, ("m",), b"t" * 16)


def chain(num_blocks: int, seed: int = 0, root: bytes = ROOT) -> list[bytes]:
    return chain_addresses(root, range(seed * 1000, seed * 1000 + num_blocks * BLOCK_TOKENS), BLOCK_TOKENS)


def records(addresses: Sequence[bytes], root: bytes = ROOT) -> list[BlockRecord]:
    parents = [root, *addresses]
    return [BlockRecord(a, parents[i], i, BLOCK_TOKENS, 7) for i, a in enumerate(addresses)]


def payload(address: bytes, size: int = PAYLOAD_BYTES) -> bytes:
    return (address * (size // len(address) + 1))[:size]


def store(client: TierClient, addresses: Sequence[bytes], seconds: float = 5.0) -> StoreResult:
    def source(index: int, view: memoryview) -> None:
        view[:] = payload(addresses[index], len(view))

    return client.store(records(addresses), source, seconds)


def load(
    client: TierClient, addresses: Sequence[bytes], first: int = 0, stop: int | None = None, seconds: float = 5.0
) -> LoadResult:
    """Load and check that each position of the result got exactly its block's bytes."""
    got: dict[int, bytes] = {}

    def sink(position: int, view: memoryview) -> None:
        got[position] = bytes(view)

    result = client.load(ROOT, addresses, first, len(addresses) if stop is None else stop, sink, seconds, lambda: False)
    for position in range(first, first + len(result.sources)):
        assert got[position] == payload(addresses[position], len(got[position]))
    return result


def wait_until(condition: Callable[[], object], seconds: float = 15.0, what: str = "") -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"did not happen in {seconds} s: {what or condition}"
        time.sleep(0.01)


def usable(client: TierClient) -> bool:
    return client.attached and not client.off_reason


class SidecarProcess:
    """`python -m pagoda_sidecar` with a volume of its own in shared memory."""

    def __init__(self, folder: Path, ram_bytes: int = 2 * MEBIBYTE, nodes: Sequence[tuple[str, int]] = ()) -> None:
        self.folder = folder
        self.volume = folder / "volume"
        self.port = free_port()
        self.ram_bytes = ram_bytes
        self.flags: dict[str, object] = {}  # more of them, or other values, from the next start on
        self._process: subprocess.Popen[bytes] | None = None
        self.log = folder / "log"
        self.namespace = NAMESPACE  # of engines that attach without saying who they are
        for name in ("volume", "secret", "settings"):
            (folder / name).mkdir(exist_ok=True)
        secret = secrets.token_bytes(32)
        (folder / "secret" / "pool").write_bytes(secret)
        (folder / "secret" / "digest").write_bytes(digest_secret(secret))
        entries = [{"name": name, "address": f"127.0.0.1:{port}"} for name, port in nodes]
        (folder / "settings" / "pool-nodes.json").write_text(json.dumps({"nodes": entries}))

    def start(self) -> None:
        arguments = {
            "--name": "p", "--host": "127.0.0.1", "--port": self.port, "--volume": self.volume,
            "--secret-dir": self.folder / "secret", "--settings-dir": self.folder / "settings",
            "--ram-bytes": self.ram_bytes, "--disk-bytes": 0, **self.flags,
        }  # fmt: skip
        command = [sys.executable, "-m", "pagoda_sidecar", *(str(part) for pair in arguments.items() for part in pair)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(dying_with_us(command, signal.SIGTERM), stderr=log)

    @property
    def supervisor(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def worker(self) -> int:
        children = Path(f"/proc/{self.supervisor}/task/{self.supervisor}/children")
        wait_until(lambda: children.read_text().split(), what="a worker")
        return int(children.read_text().split()[0])

    def kill_worker(self) -> None:
        os.kill(self.worker, signal.SIGKILL)

    def kill_supervisor(self) -> None:
        """Kill it and wait until its worker is gone as well."""
        worker = Path(f"/proc/{self.worker}")
        os.kill(self.supervisor, signal.SIGKILL)
        assert self._process is not None
        self._process.wait()
        wait_until(lambda: not worker.exists(), what="the worker to die with its supervisor")

    def stop(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(20)

    def end(self) -> None:
        """Whatever state it is in, leave nothing running."""
        if self._process is None or self._process.poll() is not None:
            return
        with contextlib.suppress(OSError, AssertionError):
            os.kill(self.worker, signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.stop()
            return
        self._process.kill()
        self._process.wait()

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    def metric(self, series: str) -> float:
        """Return one series of /metrics by its full name with labels; 0 while it does not exist."""
        for line in self.get("/metrics").splitlines():
            if line.startswith(series + " "):
                return float(line.rsplit(" ", 1)[1])
        return 0.0

    def hint_rows(self) -> dict[str, tuple[int, str]]:
        """Return digest → (tokens, tier) of the snapshot."""
        rows = {}
        for line in self.get("/v1/prefixes?follow=false").splitlines():
            for digest, tokens, tier, _ in json.loads(line).get("set", ()):
                rows[digest] = (tokens, tier)
        return rows


@contextlib.contextmanager
def sidecar_process(
    ram_bytes: int = 2 * MEBIBYTE, nodes: Sequence[tuple[str, int]] = (), flags: Mapping[str, object] | None = None
) -> Iterator[SidecarProcess]:
    """Run a sidecar for the time of a test; its volume is unique and removed."""
    folder = Path(tempfile.mkdtemp(prefix="pagoda-test-", dir="/dev/shm"))
    sidecar = SidecarProcess(folder, ram_bytes, nodes)
    sidecar.flags.update(flags or {})
    try:
        sidecar.start()
        yield sidecar
    finally:
        sidecar.end()
        shutil.rmtree(folder)


@contextlib.contextmanager
def client_of(sidecar: SidecarProcess, who: EngineIdentity | None = None) -> Iterator[TierClient]:
    """Attach an engine in this process, and wait until the RAM tier is on."""
    client = TierClient(sidecar.volume, who or identity(sidecar.namespace))
    try:
        try:
            wait_until(lambda: usable(client), what="the RAM tier")
        except AssertionError as error:
            log = sidecar.log.read_text(errors="replace")
            error.add_note(f"off: {client.off_reason!r}; the sidecar's log ends: {log[-2000:]}")
            raise
        yield client
    finally:
        client.close()


@contextlib.contextmanager
def memcached() -> Iterator[int]:
    """Run a memcached on loopback; yield its port."""
    port = free_port()
    user = ["-u", "nobody"] if os.geteuid() == 0 else []
    process = subprocess.Popen(["memcached", *user, "-l", "127.0.0.1", "-p", str(port), "-m", "64"])
    try:

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait_until(listens, what="memcached")
        yield port
    finally:
        process.kill()
        process.wait()


class FakePool:
    """A pool in a dict. `delay` seconds pass before anything lands; `broken` addresses land as garbage headers."""

    off_reason = ""
    is_configured = True

    def __init__(self) -> None:
        self.num_upheavals = 0
        self.records: dict[bytes, tuple[RecordHeader, bytes]] = {}
        self.num_fetched = 0
        self.delay = 0.0
        self.accepts = True

    def enabled(self) -> bool:
        return True

    def set_namespace(self, namespace: bytes) -> None:
        pass

    async def look(self) -> Mapping[str, str]:
        return {"mc-0": ""}

    async def probe(self, addresses: Sequence[bytes]) -> list[bool]:
        return [address in self.records for address in addresses]

    async def fetch(
        self,
        addresses: Sequence[bytes],
        destinations: Sequence[memoryview],
        on_ready: Callable[[int, RecordHeader], None],
    ) -> None:
        for index, address in enumerate(addresses):
            await asyncio.sleep(self.delay)
            if address in self.records:
                header, data = self.records[address]
                destinations[index][:] = data
                self.num_fetched += 1
                on_ready(index, header)

    async def store_all(self, records: Sequence[tuple[RecordHeader, memoryview]]) -> list[str]:
        await asyncio.sleep(self.delay)
        return [self._store(header, payload) for header, payload in records]

    def _store(self, header: RecordHeader, payload: memoryview) -> str:
        if xxhash.xxh3_128_digest(payload) != header.xxh3:
            return "corrupt"
        if self.accepts:
            self.records[header.address] = (header, bytes(payload))
        return "stored" if self.accepts else "full"

    def seconds_per_byte(self) -> float:
        return 0.0

    def latency_seconds(self) -> float:
        return 0.0

    async def close(self) -> None:
        pass
