"""`pagoda up` as a child of the demo: started, waited for, looked at, and ended however the demo ends."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pagoda_cli.launch  # asks the kernel to end `pagoda up` when we are killed

START_SECONDS = 240.0
PUSH_SECONDS = 30.0
STOP_SECONDS = 60.0
_POLL_SECONDS = 0.2
_QUIET_SECONDS = 1.0


class DemoError(Exception):
    """The demo cannot go on, or did not show what it is there to show."""


@dataclass(frozen=True)
class Part:
    """One program of the pool, from run.json."""

    kind: str
    name: str
    state: str
    pid: int | None
    port: int


class Pool:
    """A running pool."""

    def __init__(self, state: Path, process: "subprocess.Popen[str]") -> None:
        self._state = state
        self._process = process
        self._last_lines: deque[str] = deque(maxlen=25)
        self._is_quiet = threading.Event()
        threading.Thread(target=self._pass_on, daemon=True).start()

    @property
    def url(self) -> str:
        """What an OpenAI client takes for its base URL."""
        return str(self._record()["url"])

    @property
    def model(self) -> str:
        """What clients put in "model"."""
        return str(self._record()["model"])

    def part(self, kind: str, name: str) -> Part:
        """Return one program as it is now."""
        return next(part for part in self.parts() if (part.kind, part.name) == (kind, name))

    def parts(self) -> list[Part]:
        """Return all programs as they are now."""
        fields = ("kind", "name", "state", "pid", "port")
        return [Part(**{field: entry[field] for field in fields}) for entry in self._record()["parts"]]

    def wait_until_ready(self) -> None:
        """Wait until every part is ready and the router has seen so of every pod."""
        end = time.monotonic() + START_SECONDS
        while not (self._record().get("ready") and self._all_pods_are_known()):
            self._check_alive()
            if time.monotonic() > end:
                raise DemoError(f"the pool was not ready in {START_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)
        self._is_quiet.set()

    def kill_engine(self, pod: str) -> None:
        """End a pod's engine as a crash would."""
        pid = self.part("engine", pod).pid
        if pid is None:
            raise DemoError(f"the engine of {pod} is not running")
        os.kill(pid, signal.SIGKILL)

    def wait_until_pushed(self, pod: str) -> int:
        """Wait until the pod's sidecar has no more blocks to bring to the pool; return how many it has stored."""
        end = time.monotonic() + PUSH_SECONDS
        num_stored, changed = self._num_stored(pod), time.monotonic()
        while time.monotonic() - changed < _QUIET_SECONDS or num_stored == 0:
            if time.monotonic() > end:
                raise DemoError(f"the sidecar of {pod} stored {num_stored} blocks in {PUSH_SECONDS:.0f} s and no more")
            time.sleep(_POLL_SECONDS)
            now_stored = self._num_stored(pod)
            if now_stored != num_stored:
                num_stored, changed = now_stored, time.monotonic()
        return num_stored

    def explain(self) -> str:
        """Return the last lines of `pagoda up`, for when something went wrong."""
        return "\n".join(self._last_lines)

    def metrics(self, kind: str, pod: str, name: str) -> list[str]:
        """Return the lines of one metric of one program."""
        port = self.part(kind, pod).port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return [line for line in lines if line.startswith(name)]

    def _all_pods_are_known(self) -> bool:
        [router] = [part for part in self.parts() if part.kind == "router"]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{router.port}/ready", timeout=5) as answer:
                said = json.load(answer)
        except OSError:  # a router without any pod answers 503
            return False
        return bool(said["pods_ready"] == said["pods"])

    def _num_stored(self, pod: str) -> int:
        return sum(
            int(float(line.split()[-1]))
            for line in self.metrics("sidecar", pod, "pagoda_pool_operations_total")
            if 'operation="store"' in line and 'outcome="stored"' in line
        )

    def _record(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self._state / "run.json").read_text("utf-8")))
        except FileNotFoundError:
            self._check_alive()
            return {}

    def _check_alive(self) -> None:
        status = self._process.poll()
        if status is not None:
            raise DemoError(f"`pagoda up` has ended with status {status}")

    def _pass_on(self) -> None:
        """Show the start; keep what comes later, in case it has to explain something."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._last_lines.append(line.rstrip())
            if not self._is_quiet.is_set() and (line.startswith("pagoda │") or line.rstrip().endswith("%")):
                print(line.rstrip(), flush=True)


@contextlib.contextmanager
def running_pool(manifest: Path) -> Iterator[Pool]:
    """Run `manifest` while the context is open."""
    with tempfile.TemporaryDirectory(prefix="pagoda-demo-") as state:
        command = (sys.executable, "-m", "pagoda_cli", "up", str(manifest), "--port", "0", "--state", state)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(pagoda_cli.launch.__file__), str(os.getpid()), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C reaches the demo, which then ends the pool
        )
        try:
            yield Pool(Path(state), process)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
