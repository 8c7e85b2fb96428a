"""The processes of one run: two memcached nodes behind proxies, one hooked sidecar, one engine stand-in at a time."""

import collections
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pagoda_protocol.tenants import digest_secret
from tests.support.faults.control import Steering
from tests.support.faults.proxy import Proxy, running_proxy
from tests.support.memcached import Memcached, running_memcached
from tests.support.ports import free_port
from tests.support.program import dying_with_us

RAM_BYTES = 580 * 1024  # 66 slots
DISK_BYTES = 4 * 2**20
SETTLE_SECONDS = 30.0
STOP_SECONDS = 20.0
_ROOT = Path(__file__).parents[2]


class StuckError(AssertionError):
    """Something did not happen within its time."""


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise StuckError(f"did not happen in {seconds:.0f} s: {what}")
        time.sleep(0.01)


def _environment() -> dict[str, str]:
    """Ours, in which this folder's parent can be imported from wherever we stand."""
    path = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


class HookedSidecar:
    """`python -m tests.support.faults.sidecar` on a volume of its own."""

    def __init__(self, folder: Path, steering: Steering, disk_bytes: int) -> None:
        self.folder, self.steering, self.num_disk_bytes = folder, steering, disk_bytes
        self.volume = folder / "volume"
        self.disk = folder / "disk"
        self.nodes_file = folder / "settings" / "pool-nodes.json"
        self.port = free_port()
        self.log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        for name in ("volume", "secret", "settings", "disk"):
            (folder / name).mkdir(exist_ok=True)
        secret = secrets.token_bytes(32)
        (folder / "secret" / "pool").write_bytes(secret)
        (folder / "secret" / "digest").write_bytes(digest_secret(secret))

    def start(self) -> None:
        arguments = {
            "--name": "p", "--host": "127.0.0.1", "--port": self.port, "--volume": self.volume,
            "--secret-dir": self.folder / "secret", "--settings-dir": self.folder / "settings",
            "--ram-bytes": RAM_BYTES, "--disk-dir": self.disk, "--disk-bytes": self.num_disk_bytes,
        }  # fmt: skip
        command = [sys.executable, "-m", "tests.support.faults.sidecar"]
        command += [str(part) for pair in arguments.items() for part in pair]
        environment = _environment() | {"PAGODA_FAULTS": str(self.steering.folder)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(dying_with_us(command), stderr=log, env=environment)

    @property
    def worker(self) -> int | None:
        """The worker's process id; None while there is none."""
        assert self._process is not None
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else None

    def signal_worker(self, number: int) -> None:
        worker = self.worker
        if worker is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, number)

    def kill_supervisor(self) -> None:
        """Its worker dies with it; then both start again."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.start()

    def end(self) -> None:
        if self._process is None:
            return
        self.signal_worker(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def disk_bytes(self) -> int:
        """What the disk tier's folder takes now, temporary files included."""
        total = 0
        for path in self.disk.rglob("*"):
            with contextlib.suppress(OSError):  # removed meanwhile
                status = path.lstat()
                total += max(status.st_size, status.st_blocks * 512) if path.is_file() else 0
        return total

    def metrics(self) -> dict[str, float]:
        """All series by their full name; empty while nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except (OSError, ValueError):
            return {}
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def log_end(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class EngineProcess:
    """`python -m tests.faults.engine`, and what it said last."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                dying_with_us([sys.executable, "-m", "tests.faults.engine", *words]),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment,
            )  # fmt: skip
        self.counts: collections.Counter[str] = collections.Counter()
        self.wrongs: list[str] = []
        self._paused: bool | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it may just have been killed
            self.process.stdin.write(command.encode() + b"\n")
            self.process.stdin.flush()

    def pause(self) -> None:
        self._paused = None
        self.tell("pause")
        wait_until(lambda: self._paused is not None or self.process.poll() is not None, 60.0, "the engine's answer")
        assert self._paused, f"its threads do not end their calls: {self.wrongs}"

    def kill(self) -> None:
        self.process.kill()
        self._end()

    def stop(self) -> None:
        self.tell("stop")
        try:
            self.process.wait(60.0)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise StuckError("the engine does not end") from error
        self._end()
        assert self.process.returncode == 0, "the engine ended badly"

    def _end(self) -> None:
        self.process.wait()
        self._reader.join(10.0)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue  # killed in the middle of a line
            self.counts = collections.Counter(message["counts"])
            self.wrongs = message["wrongs"]
            self._paused = message.get("paused", self._paused)


class World:
    """All of them. Made by `running_world`."""

    def __init__(
        self, folder: Path, sidecar: HookedSidecar, nodes: list[Memcached], proxies: list[Proxy], num_threads: int
    ) -> None:
        self.folder, self.sidecar, self.nodes, self.proxies = folder, sidecar, nodes, proxies
        self.engine: EngineProcess | None = None
        self.total: collections.Counter[str] = collections.Counter()  # of engines that have ended
        self.wrongs: list[str] = []
        self.engine_environment: dict[str, str] = {}
        self._num_threads = num_threads

    def start_engine(self, namespace: int, seed: str) -> None:
        words = [str(self.sidecar.volume), str(namespace), seed, str(self._num_threads)]
        self.engine = EngineProcess(words, _environment() | self.engine_environment, self.folder / "engine.log")
        self.engine.tell("go")

    def end_engine(self, is_killed: bool) -> None:
        engine, self.engine = self.engine, None
        if engine is None:
            return
        engine.kill() if is_killed else engine.stop()
        self.total += engine.counts
        self.wrongs += engine.wrongs

    def counts(self) -> "collections.Counter[str]":
        return self.total + (self.engine.counts if self.engine is not None else collections.Counter())

    def all_wrongs(self) -> list[str]:
        engine = self.engine.wrongs if self.engine is not None else []
        return [*self.wrongs, *engine, *self.sidecar.steering.violations()]

    def describe(self) -> str:
        """Where everybody stands, for a failure's message: books, faults, stacks, ends of logs."""
        self.sidecar.signal_worker(signal.SIGUSR1)
        if self.engine is not None:
            self.engine.process.send_signal(signal.SIGUSR1)
        time.sleep(1.0)
        books = {name: value for name, value in self.sidecar.metrics().items() if "_created" not in name}
        engine_log = (self.folder / "engine.log").read_text(errors="replace")[-8000:]
        worker = self.sidecar.worker
        state = Path(f"/proc/{worker}/status").read_text().splitlines()[2] if worker else "none"
        return "\n".join(
            (
                f"books {books}", f"last faults {self.sidecar.steering.done()[-40:]}", f"worker {worker} {state}",
                f"sidecar's log\n{self.sidecar.log_end(200)}", f"engine's log\n{engine_log}",
            )
        )  # fmt: skip

    def write_nodes(self, present: list[bool]) -> None:
        """Write pool-nodes.json with those nodes that are present."""
        entries = [
            {"name": f"node-{number}", "address": f"127.0.0.1:{proxy.port}"}
            for number, proxy in enumerate(self.proxies)
            if present[number]
        ]
        temporary = self.sidecar.nodes_file.with_suffix(".next")
        temporary.write_text(json.dumps({"nodes": entries}))
        temporary.replace(self.sidecar.nodes_file)


@contextlib.contextmanager
def running_world(
    num_threads: int = 4, environment: Mapping[str, str] | None = None, disk_bytes: int = DISK_BYTES
) -> Iterator[World]:
    """Run everything but an engine; nothing is left when the context ends."""
    folder = Path(tempfile.mkdtemp(prefix="pagoda-faults-", dir="/dev/shm"))
    sidecar = HookedSidecar(folder, Steering(folder / "control"), disk_bytes)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        nodes = [
            stack.enter_context(running_memcached(8, "1m")),
            stack.enter_context(running_memcached(8, "4k", arguments=("-o", "slab_chunk_max=1"))),
        ]
        proxies = [stack.enter_context(running_proxy("127.0.0.1", node.port, speaks_meta=True)) for node in nodes]
        world = World(folder, sidecar, nodes, proxies, num_threads)
        world.engine_environment = dict(environment or {})
        world.write_nodes([True] * len(proxies))
        sidecar.start()
        stack.callback(sidecar.end)
        stack.callback(world.end_engine, True)
        yield world
