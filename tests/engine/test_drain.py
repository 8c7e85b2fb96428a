"""The preStop: whatever it finds, it ends with status 0, and in time."""

import http.server
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagoda_engine import drain
from pagoda_protocol.tenants import admin_token

SECRET = secrets.token_bytes(32)


class Engine(http.server.BaseHTTPRequestHandler):
    """Answers a drain as its server's `answer` says, after its `seconds`."""

    def do_POST(self) -> None:
        time.sleep(self.server.seconds)  # type: ignore[attr-defined]
        is_known = self.headers["Authorization"] == f"Bearer {admin_token(SECRET)}" and self.path == "/drain"
        body = self.server.answer if is_known else b"{}"  # type: ignore[attr-defined]
        self.send_response(200 if is_known else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[http.server.HTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    server.answer, server.seconds = b'{"status": "drained", "num_running": 0}', 0.0  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def secret_dir(tmp_path: Path) -> Path:
    (tmp_path / "pool").write_bytes(SECRET)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], port: int, secret_dir: Path, seconds: float = 5.0) -> str:
    assert drain.main(["--port", str(port), "--secret-dir", str(secret_dir), "--seconds", str(seconds)]) == 0
    return capsys.readouterr().err


def test_it_ends_when_the_engine_has_drained(
    engine: http.server.HTTPServer, secret_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.seconds = 0.3  # type: ignore[attr-defined]
    began = time.monotonic()
    assert run(capsys, engine.server_port, secret_dir) == "drain: drained\n"
    assert time.monotonic() - began >= 0.3


def test_it_ends_when_the_time_is_up(
    engine: http.server.HTTPServer,
    secret_dir: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drain, "MARGIN_SECONDS", 0.0)
    monkeypatch.setattr(drain, "CONNECT_SECONDS", 0.2)
    engine.seconds = 2.0  # type: ignore[attr-defined]
    began = time.monotonic()
    assert run(capsys, engine.server_port, secret_dir, seconds=0.3) == "drain: the time is up\n"
    assert time.monotonic() - began < 1.5


def test_an_engine_that_is_not_up_a_secret_that_is_not_there_and_an_answer_that_is_none_end_it_at_once(
    engine: http.server.HTTPServer, secret_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    assert "not drained: ConnectionRefusedError" in run(capsys, 1, secret_dir)
    assert "not drained: FileNotFoundError" in run(capsys, engine.server_port, tmp_path / "nowhere")
    engine.answer = b"<html>"  # type: ignore[attr-defined]
    assert "not drained: JSONDecodeError" in run(capsys, engine.server_port, secret_dir)
    (secret_dir / "pool").write_bytes(b"another")
    assert "refused with status 401" in run(capsys, engine.server_port, secret_dir)
    assert time.monotonic() - began < 2
