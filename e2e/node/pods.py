"""A pool on the node, looked at from outside: its pods, their containers and cgroups, its router's Service."""

import contextlib
import functools
import http.client
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.handle import KubectlError, NodeCluster
from pagoda_operator import names
from pagoda_protocol.pool.quantities import parse_bytes
from tests.support.program import Answer, read_stream

ANSWER_SECONDS = 60.0
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class RunningPool:
    """The pool of this name, as its users and its node see it."""

    cluster: NodeCluster
    namespace: str
    name: str

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Return an object of the pool's namespace."""
        return self.cluster.kubectl_json("get", kind, name, "-n", self.namespace)

    def patch(self, spec: dict[str, Any]) -> None:
        """Change the pool's spec."""
        self.cluster.kubectl(
            "patch", "pgp", self.name, "-n", self.namespace, "--type=merge", "-p", json.dumps({"spec": spec})
        )

    def hurry_settings(self) -> None:
        """Have the kubelet bring new live settings now: it looks after a pod that changes, else once in a minute."""
        pods = ("pods", "-n", self.namespace, "-l", f"{names.POOL_LABEL}={self.name},{names.PART_LABEL}={names.ENGINE}")
        self.cluster.kubectl("annotate", *pods, f"hurried={time.time_ns()}", "--overwrite")

    def conditions(self) -> dict[str, dict[str, Any]]:
        """Return the conditions of the pool's status by type; what they say of an older spec is left out."""
        pool = self.get("pgp", self.name)
        conditions = pool.get("status", {}).get("conditions", [])
        newest = [found for found in conditions if found["observedGeneration"] == pool["metadata"]["generation"]]
        return {found["type"]: found for found in newest}

    def condition(self, kind: str) -> dict[str, Any]:
        """Return one condition of the pool's status."""
        return self.conditions().get(kind, {"status": "missing", "message": ""})

    def wait(self, kind: str, status: str = "True", seconds: float = 180.0) -> None:
        """Wait for a condition; what the pool says of itself is in the error."""
        until(lambda: self.condition(kind)["status"] == status, f"{kind}={status}", seconds, self.explain)

    def pods(self, part: str) -> list[dict[str, Any]]:
        """Return the pods of a part."""
        labels = f"pagoda-kv.io/pool={self.name},pagoda-kv.io/part={part}"
        return list(self.cluster.kubectl_json("get", "pods", "-n", self.namespace, "-l", labels)["items"])

    def staying(self, part: str) -> list[dict[str, Any]]:
        """Return those pods of a part that are not on their way out."""
        return [pod for pod in self.pods(part) if "deletionTimestamp" not in pod["metadata"]]

    def containers(self, part: str, name: str) -> list[dict[str, Any]]:
        """Return the status of a container in each of the part's pods that stay."""
        return [status for pod in self.staying(part) for status in statuses_of(pod) if status["name"] == name]

    def container(self, part: str, name: str) -> dict[str, Any]:
        """Return the status of a container of the part's only pod that stays."""
        [status] = self.containers(part, name)
        return status

    def lives(self) -> dict[str, tuple[str, list[int]]]:
        """Return of every pod which one it is and how often its containers were started anew."""
        pods = [pod for part in names.PARTS for pod in self.pods(part)]
        return {
            pod["metadata"]["name"]: (
                pod["metadata"]["uid"],
                [status["restartCount"] for status in statuses_of(pod)],
            )
            for pod in pods
        }

    def memcached_nodes(self) -> dict[str, str]:
        """Return the state of every memcached node, as the only engine pod's sidecar sees it."""
        [pod] = self.staying("engine")
        summary = f"http://{pod['status']['podIP']}:{names.SIDECAR_PORT}/v1/summary"
        with urllib.request.urlopen(summary, timeout=ANSWER_SECONDS) as answer:
            nodes = json.load(answer)["tiers"]["pool"]["nodes"]
        return {name: seen["state"] for name, seen in nodes.items()}

    def kill(self, container: dict[str, Any]) -> None:
        """Kill a container's first process, as a crash would; the status tells which."""
        os.kill(self.cluster.node.process_id(container["containerID"]), signal.SIGKILL)

    @functools.cached_property
    def model(self) -> str:
        """What clients write into "model"."""
        return str(self.get("pgp", self.name)["status"]["model"])

    @functools.cached_property
    def url(self) -> str:
        """Where the router's Service is, for this machine and for pods."""
        service = self.get("service", f"{self.name}-router")["spec"]
        return f"http://{service['clusterIP']}:{service['ports'][0]['port']}"

    def ask(self, text: str, system: str = "", max_tokens: int = 4) -> dict[str, Any]:
        """Return the answer to a chat of one question; OSError (of urllib) where there is none."""
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": text})
        with self._chat(messages, max_tokens) as answer:
            return dict(json.load(answer))

    def stream(self, text: str, num_tokens: int) -> Answer:
        """Return a streamed answer of so many tokens; OSError where none began, RequestFailed where it broke off."""
        options = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
        start = time.perf_counter()
        with self._chat([{"role": "user", "content": text}], num_tokens, **options) as answer:
            return read_stream(answer, start)

    @contextlib.contextmanager
    def _chat(
        self, messages: list[dict[str, str]], max_tokens: int, **options: Any
    ) -> Iterator[http.client.HTTPResponse]:
        url = f"{self.url}/v1/chat/completions"
        body = {"model": self.model, "messages": messages, "max_tokens": max_tokens, "temperature": 0, **options}
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
                yield answer
        except urllib.error.HTTPError as error:
            raise OSError(f"{url} answered {error.code}: {error.read(500).decode()}") from error

    def explain(self) -> str:
        """Return what one would ask of a pool that does not do what it should."""
        questions = [
            ("describe", "pgp", self.name),
            ("get", "pods", "-o", "wide"),
            ("get", "events", "--sort-by=.lastTimestamp"),
            *(("logs", pod["metadata"]["name"], "--all-containers", "--tail=20") for pod in self.pods("engine")),
        ]
        return "\n".join(self._told(*question)[-4000:] for question in questions)

    def _told(self, *question: str) -> str:
        try:
            return self.cluster.kubectl(*question, "-n", self.namespace)
        except KubectlError as error:
            return str(error)


def statuses_of(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the statuses of a pod's containers, sidecars first."""
    return [*pod["status"].get("initContainerStatuses", []), *pod["status"].get("containerStatuses", [])]


def until(condition: Callable[[], bool], what: str, seconds: float, explain: Callable[[], str]) -> None:
    """Wait until `condition` holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not come within {seconds:.0f} s\n{explain()}"
        time.sleep(POLL_SECONDS)


def requested(pod: dict[str, Any], resource: str) -> int:
    """Return the bytes that a pod of ours requests: its containers and sidecars run at once."""
    containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
    return sum(parse_bytes(container["resources"]["requests"][resource]) for container in containers)


@dataclass(frozen=True)
class Memory:
    """What the kernel counted for a pod's cgroup."""

    limit_bytes: int
    peak_bytes: int
    # Times that memory had to be taken back, or somebody killed, because the limit was reached.
    num_at_limit: int


def memory_of(pod: dict[str, Any]) -> Memory:
    """Read the pod's cgroup, whichever version of cgroups the machine has."""
    uid = pod["metadata"]["uid"]
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        [group] = Path("/sys/fs/cgroup").glob(f"kubepods/**/pod{uid}")
        events = dict(line.split() for line in (group / "memory.events").read_text().splitlines())
        return Memory(_number(group / "memory.max"), _number(group / "memory.peak"), int(events["max"]))
    [group] = Path("/sys/fs/cgroup/memory").glob(f"kubepods/**/pod{uid}")
    limit, peak, failures = ("memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.failcnt")
    return Memory(_number(group / limit), _number(group / peak), _number(group / failures))


def _number(path: Path) -> int:
    return int(path.read_text())
