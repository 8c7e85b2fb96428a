"""What `helm test` runs in its pod, here against a router that fits on the screen."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[2] / "charts" / "pagoda" / "files" / "reuse.py"


class FakeRouter(ThreadingHTTPServer):
    """Answers like a router whose pod becomes ready after some tries and caches, or not."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), FakeRequest)
        self.tries_until_ready = 0
        self.does_cache = True
        self.bodies: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class FakeRequest(BaseHTTPRequestHandler):
    server: FakeRouter

    def do_GET(self) -> None:
        if self.path == "/ready" and self.server.tries_until_ready > 0:
            self.server.tries_until_ready -= 1
            self.answer(503, {"ready": False, "reason": "no pod is ready"})
        elif self.path == "/ready":
            self.answer(200, {"ready": True})
        else:
            self.answer(200, {"data": [{"id": "some-model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_known = self.server.does_cache and bool(self.server.bodies)
        self.server.bodies.append(body)
        details = {"cached_tokens": 384 if is_known else 0}
        self.answer(200, {"usage": {"prompt_tokens": 400, "prompt_tokens_details": details}})

    def answer(self, status: int, document: dict[str, Any]) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def router() -> Iterator[FakeRouter]:
    server = FakeRouter()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def reuse(url: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run it as the pod does: its text as an argument."""
    command = [sys.executable, "-c", PROGRAM.read_text("utf-8"), url, str(seconds)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_it_passes_when_the_second_prompt_came_from_the_cache(router: FakeRouter) -> None:
    router.tries_until_ready = 1
    done = reuse(router.url, 20)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED: 384 tokens" in done.stdout
    first, second = (body["messages"] for body in router.bodies)
    assert first[0] == second[0]
    assert first[1] != second[1]
    assert {body["model"] for body in router.bodies} == {"some-model"}


def test_it_fails_when_nothing_came_from_the_cache(router: FakeRouter) -> None:
    router.does_cache = False
    done = reuse(router.url, 20)
    assert done.returncode == 1
    assert "FAILED: nothing of the second prompt came from the cache" in done.stdout


def test_it_fails_in_time_and_says_what_it_waited_for_when_the_pool_does_not_become_ready(router: FakeRouter) -> None:
    router.tries_until_ready = 1000
    begin = time.monotonic()
    done = reuse(router.url, 1.5)
    assert done.returncode == 1
    assert "503" in done.stdout
    assert "no pod is ready" in done.stdout
    assert time.monotonic() - begin < 10


def test_it_fails_when_there_is_no_router() -> None:
    done = reuse("http://127.0.0.1:9", 0.5)
    assert done.returncode == 1
    assert "did not answer" in done.stdout
