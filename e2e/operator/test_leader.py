"""Two operators, one Lease, a real API server: whatever happens to the leader, the other one writes within 20 s, and
from its first write on the former leader's writes nothing any more.

Several are told at a time, each in a namespace of its own, since each mostly waits for the Lease.
"""

import concurrent.futures
import contextlib
import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.handle import Cluster
from e2e.operator.support import api_server_address, operator_identity, running_operator, through
from pagoda_operator.kube.fence import EXIT_STATUS
from tests.support.faults.proxy import Proxy, running_proxy
from tests.support.program import Program

TAKEOVER_SECONDS = 20.0
GRACEFUL_SECONDS = 6.0
AFTERMATH_SECONDS = 3.0
AT_ONCE = 3  # two processes each
WRITER = "e2e.operator.writing_operator"


class Writes:
    """Every version of the ConfigMap, in the API server's order: who wrote it, and when they say they did."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        path = f"/api/v1/namespaces/{namespace}/configmaps?watch=1&fieldSelector=metadata.name=writers"
        self.seen: list[tuple[str, float]] = []
        self._process = subprocess.Popen(
            ["kubectl", "get", "--raw", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=cluster.environment(),
        )  # fmt: skip
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            data = json.loads(line)["object"]["data"]
            self.seen.append((data["writer"], float(data["at"])))

    def close(self) -> None:
        self._process.kill()
        self._process.wait(10)
        self._thread.join(10)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def first_of(self, writer: str, within: float) -> float:
        """Wait for the first write of `writer` and return its time."""
        end = time.monotonic() + within
        while time.monotonic() < end:
            for who, at in tuple(self.seen):
                if who == writer:
                    return at
            time.sleep(0.05)
        raise TimeoutError(f"{writer} wrote nothing in {within} s")

    @property
    def turns(self) -> list[str]:
        """Writers in their order, each turn once."""
        writers = [writer for writer, _ in self.seen]
        return [writer for number, writer in enumerate(writers) if number == 0 or writers[number - 1] != writer]


@dataclass
class Scene:
    """Two operators of which `first` leads, by way of a proxy, and `second` waits."""

    cluster: Cluster
    namespace: str
    first: Program
    second: Program
    proxy: Proxy
    writes: Writes
    seen: dict[str, Any] = field(default_factory=dict)

    def lease(self) -> Mapping[str, Any]:
        found = self.cluster.kubectl_json("get", "lease", "pagoda", "--namespace", self.namespace)
        return found["spec"]  # type: ignore[no-any-return]

    def await_takeover(self, begin: float) -> None:
        self.seen["takeover"] = self.writes.first_of("second", TAKEOVER_SECONDS + 20) - begin
        self.seen["lease"] = self.lease()

    def exit_status(self, seconds: float = 10.0) -> int:
        assert self.first.process is not None
        return self.first.process.wait(seconds)


@contextlib.contextmanager
def scene(cluster: Cluster, folder: Path) -> Iterator[Scene]:
    with contextlib.ExitStack() as stack:
        namespace = stack.enter_context(cluster.namespace("leader"))
        identity = stack.enter_context(operator_identity(cluster, namespace))
        proxy = stack.enter_context(running_proxy(*api_server_address(identity)))
        writes = Writes(cluster, namespace)
        stack.callback(writes.close)
        far = through(identity, proxy.port, folder / f"{namespace}.kubeconfig")
        first = stack.enter_context(running_operator(far, folder, f"{namespace}-first", WRITER, ("--name=first",)))
        writes.first_of("first", 30)
        second = stack.enter_context(
            running_operator(identity, folder, f"{namespace}-second", WRITER, ("--name=second",))
        )
        yield Scene(cluster, namespace, first, second, proxy, writes)
        time.sleep(1)  # for writes that should not be


def killed(scene: Scene) -> None:
    begin = time.time()
    scene.first.kill()
    scene.await_takeover(begin)


def black_holed(scene: Scene) -> None:
    begin = time.time()
    scene.proxy.black_hole(True)
    scene.seen["status"] = scene.exit_status(15.0)
    scene.seen["ended"] = time.time() - begin
    scene.await_takeover(begin)
    scene.proxy.black_hole(False)  # what it had sent goes on to the API server now
    time.sleep(AFTERMATH_SECONDS)


def stopped_and_resumed(scene: Scene) -> None:
    begin = time.time()
    scene.first.signal(signal.SIGSTOP)
    scene.await_takeover(begin)
    scene.first.signal(signal.SIGCONT)
    scene.seen["status"] = scene.exit_status()
    time.sleep(AFTERMATH_SECONDS)


def stopped_behind_the_fence(scene: Scene) -> None:
    begin = time.time()
    scene.first.signal(signal.SIGUSR1)
    scene.await_takeover(begin)
    scene.seen["state"] = Path(f"/proc/{scene.first.pid}/stat").read_text().rpartition(")")[2].split()[0]
    scene.first.signal(signal.SIGCONT)
    scene.seen["status"] = scene.exit_status()
    time.sleep(AFTERMATH_SECONDS)


def ended(scene: Scene) -> None:
    begin = time.time()
    scene.first.signal(signal.SIGTERM)
    scene.seen["status"] = scene.exit_status()
    scene.await_takeover(begin)


def left_alone(scene: Scene) -> None:
    time.sleep(AFTERMATH_SECONDS)
    for program in (scene.first, scene.second):
        scene.seen[program.name.rpartition("-")[2]] = {
            "health": program.get("/health")[0],
            "ready": program.get("/ready")[0],
            "leads": program.metric("pagoda_operator_leader"),
            "calls": program.metric("pagoda_operator_api_calls_total"),
            "lease_calls": program.metric("pagoda_operator_api_calls_total", kind="leases"),
        }


STORIES = (killed, black_holed, stopped_and_resumed, stopped_behind_the_fence, ended, left_alone)


@pytest.fixture(scope="module")
def told(knowing: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[Callable[..., None], Scene]]:
    """Every story as it ended."""
    folder = tmp_path_factory.mktemp("leader")

    def tell(story: Callable[[Scene], None]) -> Scene:
        with scene(knowing, folder) as it:
            story(it)
        return it

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as threads:
        yield dict(zip(STORIES, threads.map(tell, STORIES), strict=True))


@pytest.mark.parametrize("story", [killed, black_holed, stopped_and_resumed, stopped_behind_the_fence, ended])
def test_a_leader_is_replaced_within_twenty_seconds_and_writes_nothing_after_its_successor(
    told: Mapping[Callable[..., None], Scene], story: Callable[..., None]
) -> None:
    it = told[story]
    assert it.writes.turns == ["first", "second"]
    assert it.seen["takeover"] < TAKEOVER_SECONDS
    assert it.seen["lease"]["holderIdentity"].startswith("second_")
    assert it.seen["lease"]["leaseTransitions"] == 2  # the first took it from a former operator
    print(f"{story.__name__}: {it.seen['takeover']:.1f} s, {len(it.writes.seen)} writes")


@pytest.mark.parametrize("story", [black_holed, stopped_and_resumed, stopped_behind_the_fence])
def test_a_leader_that_cannot_renew_ends_by_itself(
    told: Mapping[Callable[..., None], Scene], story: Callable[..., None]
) -> None:
    assert told[story].seen["status"] == EXIT_STATUS


def test_a_black_holed_leader_has_ended_before_its_successor_leads(told: Mapping[Callable[..., None], Scene]) -> None:
    it = told[black_holed]
    assert it.seen["ended"] < it.seen["takeover"]


def test_the_process_that_was_stopped_behind_the_fence_was_really_stopped(
    told: Mapping[Callable[..., None], Scene],
) -> None:
    assert told[stopped_behind_the_fence].seen["state"] == "T"


def test_a_leader_that_is_asked_to_end_hands_over_at_once(told: Mapping[Callable[..., None], Scene]) -> None:
    it = told[ended]
    assert it.seen["status"] == 0
    assert it.seen["takeover"] < GRACEFUL_SECONDS


def test_both_are_ready_and_the_one_that_waits_asks_for_nothing_but_the_lease(
    told: Mapping[Callable[..., None], Scene],
) -> None:
    it = told[left_alone]
    first, second = it.seen["first"], it.seen["second"]
    assert [program["health"] for program in (first, second)] == [200, 200]
    assert [program["ready"] for program in (first, second)] == [200, 200]
    assert [program["leads"] for program in (first, second)] == [1, 0]
    assert second["calls"] == second["lease_calls"] > 0
    assert it.writes.turns == ["first"]
