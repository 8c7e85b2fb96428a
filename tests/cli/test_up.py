"""`pagoda up` as a process, over programs that only listen (tests/cli/programs): what is left however it ends."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli import manifests
from tests.cli.test_supervise import is_alive

PROGRAMS = Path(__file__).parent / "programs"
DEADLINE_SECONDS = 60.0


class Pool:
    """A running `pagoda up` and what it says."""

    def __init__(self, folder: Path, *flags: str, changes: dict[str, object] | None = None) -> None:
        self.state = folder / "state"
        self.faults = folder / "faults"
        self.faults.mkdir(exist_ok=True)
        self.output = folder / "output.txt"
        manifest = manifests.write(folder / "pool.yaml", changes or {"spec.cache.pool": manifests.ABSENT})
        paths = [str(PROGRAMS), os.environ.get("PYTHONPATH", "")]
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "pagoda_cli", "up", str(manifest)),
                    *("--port", "0", "--state", str(self.state), *flags),
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PAGODA_FAKE": str(self.faults)},
            )

    @property
    def said(self) -> str:
        return self.output.read_text("utf-8")

    def record(self) -> dict[str, Any]:
        try:
            record = dict(json.loads((self.state / "run.json").read_text("utf-8")))
        except FileNotFoundError:
            record = {}
        # A run that was killed with its guard leaves its file.
        return record if record.get("pid") == self.process.pid else {"ready": False, "parts": []}

    def pids(self) -> list[int]:
        return [part["pid"] for part in self.record()["parts"] if part["pid"] is not None]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert time.monotonic() < end, f"{what} did not happen:\n{self.said}"
            time.sleep(0.05)

    def until_ready(self) -> None:
        self.until(lambda: bool(self.record()["ready"]) or self.process.poll() is not None, "ready")
        assert self.process.poll() is None, self.said

    def ended(self) -> int:
        return self.process.wait(DEADLINE_SECONDS)

    def volumes(self) -> set[Path]:
        """The volume folders that this run's sidecars were given."""
        found = set()
        for pid in self.pids():
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            if "--volume" in words:
                found.add(Path(words[words.index("--volume") + 1]).parent)
        return found


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Pool]]:
    pools = []

    def begin(*flags: str, changes: dict[str, object] | None = None) -> Pool:
        pools.append(Pool(tmp_path, *flags, changes=changes))
        return pools[-1]

    yield begin
    for pool in pools:
        with contextlib.suppress(ProcessLookupError):
            pool.process.kill()
        pool.process.wait(DEADLINE_SECONDS)


def assert_nothing_is_left(pool: Pool, pids: list[int], volumes: set[Path]) -> None:
    pool.until(lambda: not any(is_alive(pid) for pid in pids), "the end of all programs")
    pool.until(lambda: not any(volume.exists() for volume in volumes), "the end of the volumes")
    pool.until(lambda: not (pool.state / "run.json").exists(), "the end of run.json")
    pool.until(lambda: not (pool.state / "run").exists(), "the end of the run folder")


def test_a_pool_comes_up_tells_its_url_and_drains_on_sigterm(start: Callable[..., Pool], tmp_path: Path) -> None:
    of_no_pod = tmp_path / "state" / "disk" / "chat-7"
    of_no_pod.mkdir(parents=True)
    pool = start()
    pool.until_ready()
    assert not of_no_pod.exists(), "a disk tier of a pod that is no more"
    pids, volumes, url = pool.pids(), pool.volumes(), pool.record()["url"]
    assert len(pids) == 5
    assert len(volumes) == 1
    with urllib.request.urlopen(f"{url}/models", timeout=10) as answer:
        assert answer.status == 200
    assert f"pool chat is up at {url}" in pool.said
    assert f"curl {url}/chat/completions" in pool.said
    assert "engine chat-0 │ engine chat-0 begins" in pool.said
    assert stat.S_IMODE((pool.state / "run.json").stat().st_mode) == 0o600
    pool.process.terminate()
    assert pool.ended() == 0
    assert_nothing_is_left(pool, pids, volumes)
    assert (pool.state / "secrets" / "chat-pool-secret" / "pool").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_ctrl_c_and_a_closed_terminal_end_everything_too(number: int, start: Callable[..., Pool]) -> None:
    pool = start()
    pool.until_ready()
    pids, volumes = pool.pids(), pool.volumes()
    pool.process.send_signal(number)
    assert pool.ended() == 0
    assert_nothing_is_left(pool, pids, volumes)


def test_sigkill_leaves_neither_programs_nor_files_and_the_pool_starts_again(
    start: Callable[..., Pool], tmp_path: Path
) -> None:
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "sidecar-family").touch()
    pool = start(changes={"spec.replicas": 1})  # with memcached, which drops the kernel's death signal under root
    pool.until_ready()
    grandchildren = [child for pid in pool.pids() for child in children(pid)]
    assert len(grandchildren) == 1
    pids, volumes = [*pool.pids(), *grandchildren], pool.volumes()
    pool.process.kill()
    pool.ended()
    assert_nothing_is_left(pool, pids, volumes)
    again = start()
    again.until_ready()


def test_killed_with_its_guard_the_programs_end_and_the_next_run_removes_the_files(start: Callable[..., Pool]) -> None:
    pool = start()
    pool.until_ready()
    pids, volumes = pool.pids(), pool.volumes()
    [guard] = set(children(pool.process.pid)) - set(pids)
    os.kill(guard, signal.SIGKILL)
    pool.process.kill()
    pool.ended()
    pool.until(lambda: not any(is_alive(pid) for pid in pids), "the end of all programs")
    assert all(volume.exists() for volume in volumes)
    start().until_ready()
    assert not any(volume.exists() for volume in volumes)


def test_a_killed_engine_comes_back_with_its_name_and_port(start: Callable[..., Pool]) -> None:
    pool = start()
    pool.until_ready()

    def engine() -> dict[str, Any]:
        return next(part for part in pool.record()["parts"] if (part["kind"], part["name"]) == ("engine", "chat-0"))

    before = engine()
    os.kill(before["pid"], signal.SIGKILL)
    pool.until(lambda: engine()["starts"] == 2 and engine()["state"] == "ready", "the second start")
    assert engine()["port"] == before["port"]
    assert engine()["pid"] != before["pid"]
    pool.process.terminate()
    assert pool.ended() == 0


def test_an_engine_that_cannot_start_is_shown_with_its_last_lines(start: Callable[..., Pool], tmp_path: Path) -> None:
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "engine-broken").touch()
    pool = start()
    assert pool.ended() == 1
    assert "was never ready" in pool.said
    assert "│ no such weights" in pool.said.rpartition("its last lines")[2]
    assert "Traceback" not in pool.said
    assert_nothing_is_left(pool, [], set())


def test_a_second_ctrl_c_does_not_wait_for_the_drain(start: Callable[..., Pool], tmp_path: Path) -> None:
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "router-stubborn").touch()
    pool = start(changes={"spec.drainSeconds": 3600, "spec.cache.pool": manifests.ABSENT})
    pool.until_ready()
    pids, volumes = pool.pids(), pool.volumes()
    pool.process.send_signal(signal.SIGINT)
    pool.until(lambda: "stopping" in pool.said, "the drain")
    pool.process.send_signal(signal.SIGINT)
    assert pool.ended() == 128 + signal.SIGINT
    assert_nothing_is_left(pool, pids, volumes)


def test_the_same_pool_cannot_run_twice_and_the_first_goes_on(start: Callable[..., Pool]) -> None:
    pool = start()
    pool.until_ready()
    second = start()
    assert second.ended() == 2
    assert f"this pool is already running (process {pool.process.pid}" in second.said
    assert pool.process.poll() is None
    assert pool.record()["ready"]
    pool.process.terminate()
    assert pool.ended() == 0


def test_fields_without_effect_here_are_named_a_line_each(start: Callable[..., Pool]) -> None:
    changes: dict[str, object] = {
        "metadata.labels": {"team": "a"},
        "status": {"readyReplicas": 2},
        "spec.engine.image": "registry.example/pagoda:1",
        "spec.engine.resources.limits.cpu": "2",
        "spec.routing.replicas": 2,
        "spec.cache.pool": manifests.ABSENT,
    }
    pool = start(changes=changes)
    pool.until_ready()
    for path in changes.keys() - {"spec.cache.pool"}:
        assert f"pagoda │ {path}: without effect here: " in pool.said
    pool.process.terminate()
    assert pool.ended() == 0
