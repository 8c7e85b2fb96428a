"""One real program that can be stopped, killed, asked and started again on the same port; and what it answered."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from pagoda_protocol.pool.arguments import Command

READY_SECONDS = 180.0
STOP_SECONDS = 30.0
REQUEST_SECONDS = 600.0
HOST = "127.0.0.1"


def dying_with_us(argv: Sequence[str], number: signal.Signals = signal.SIGKILL) -> list[str]:
    """Return a command that becomes `argv` and gets this signal when the thread that starts it is gone.

    So a killed run leaves nothing behind; but a program that changes its user, as memcached does, loses the signal.
    A program and no `preexec_fn`: Python would fork for that, and with gRPC's fork handlers channels of this process
    then hung now and then (docs/lab.md; a sister of it: https://github.com/grpc/grpc/issues/43055).
    """
    return ["setpriv", "--pdeathsig", number.name.removeprefix("SIG"), "--", *argv]


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
        argv, environment = dying_with_us(self.command.argv), os.environ | dict(self.command.environment)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log)

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
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout)
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

    def chat(self, messages: Sequence[Mapping[str, Any]], api_key: str | None = None, **options: Any) -> Answer:
        """Hold one streamed chat completion."""
        return self.stream("/v1/chat/completions", {"messages": list(messages), **options}, api_key=api_key)

    def complete(self, prompt: str | Sequence[int], api_key: str | None = None, **options: Any) -> Answer:
        """Hold one streamed text completion."""
        body = {"prompt": prompt if isinstance(prompt, str) else list(prompt), **options}
        return self.stream("/v1/completions", body, api_key=api_key)

    def stream(
        self, path: str, body: Mapping[str, Any], timeout: float = REQUEST_SECONDS, api_key: str | None = None
    ) -> Answer:
        """POST a streamed request and read it to its end.

        Raises:
            RequestFailed: an error status, an error event, or a stream without its end.
        """
        body = {
            "model": "test-model", "stream": True, "stream_options": {"include_usage": True}, "temperature": 0, **body,
        }  # fmt: skip
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout)
        try:
            start = time.perf_counter()
            headers = {"Content-Type": "application/json"}
            if api_key is not None:
                headers["Authorization"] = f"Bearer {api_key}"
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise RequestFailed(answer.status, answer.read().decode(errors="replace"))
            return read_stream(answer, start)
        finally:
            connection.close()


def read_stream(answer: http.client.HTTPResponse, start: float) -> Answer:
    """Read the events of a completion that was asked for at `start`, to the last one.

    Raises:
        RequestFailed: an error event, or no `[DONE]`.
    """
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
