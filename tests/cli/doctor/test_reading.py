"""Reading a cluster that hangs, trickles, lies or refuses: the doctor says so, in time."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from pagoda_cli.doctor import command
from pagoda_cli.doctor.command import Request, doctor, examined
from pagoda_cli.doctor.reading import CallError, ClusterError, KubeServer, Reading, connect
from pagoda_runtime.deadlines import Deadline

Answering = Callable[[BaseHTTPRequestHandler], None]


@contextlib.contextmanager
def api_server(tmp_path: Path, answering: Answering) -> Iterator[Path]:
    """Serve, and yield a kubeconfig."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with contextlib.suppress(OSError):
                answering(self)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield kubeconfig(tmp_path, f"http://127.0.0.1:{server.server_address[1]}")
    finally:
        server.shutdown()
        server.server_close()


def kubeconfig(folder: Path, address: object, **user: Any) -> Path:
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": address}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": user or {"token": "t"}}],
    }))  # fmt: skip
    return path


def send(handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def say(status: int, document: Any) -> Answering:
    return lambda handler: send(handler, status, json.dumps(document).encode())


def status(code: int, message: str) -> Answering:
    return say(code, {"kind": "Status", "apiVersion": "v1", "message": message, "code": code})


def silent(_: BaseHTTPRequestHandler) -> None:
    time.sleep(30)


def trickling(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)


@pytest.mark.parametrize("answering", [silent, trickling])
def test_a_server_that_never_ends_its_answer_is_given_up_in_time(tmp_path: Path, answering: Answering) -> None:
    with api_server(tmp_path, answering) as path:
        server = connect(path, None)
        began = time.monotonic()
        with pytest.raises(CallError) as failed:
            server.call("GET", "/version", {}, None, 0.5, 1000)
        assert failed.value.status is None
        assert time.monotonic() - began < 3.0


def test_a_cluster_that_does_not_answer_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = kubeconfig(tmp_path, "http://127.0.0.1:1")
    assert doctor(Request(None, path, None, as_json=True)) == 3
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["code"] == "PGD099"
    assert "127.0.0.1:1" in finding["seen"]


@pytest.mark.parametrize(
    ("answering", "words"),
    [
        (status(401, "Unauthorized"), "Unauthorized"),
        (lambda handler: send(handler, 200, b"<html>"), "not JSON"),
        (say(200, []), "no object"),
        (status(404, "404 page not found"), "not found"),
        (lambda handler: send(handler, 302, b""), "302"),
        (lambda handler: send(handler, 200, b"[" * 100_000), "not JSON"),
    ],
)
def test_a_server_that_is_none_or_knows_us_not_cannot_be_read(tmp_path: Path, answering: Answering, words: str) -> None:
    with api_server(tmp_path, answering) as path:
        report = examined(Request(None, path, None, as_json=False), seconds=5.0)
        assert report.status == 3
        assert words in report.findings[0].seen


@pytest.mark.parametrize(
    "document",
    [
        {"status": "up"},
        {"apiVersion": "v1", "kind": "List", "items": 3},
        {"apiVersion": "v1", "kind": "List", "items": [None]},
        {"apiVersion": "v1", "kind": "List", "items": [{"metadata": None}]},
    ],
    ids=["no list", "a number of items", "an item that is none", "an item without a name"],
)
def test_a_server_that_answers_something_else_is_said_to(tmp_path: Path, document: Any) -> None:
    with api_server(tmp_path, say(200, document)) as path:
        report = examined(Request(None, path, None, as_json=False), seconds=5.0)
        assert report.status == 1
        assert {finding.code for finding in report.findings} == {"PGD091"}
        assert all("Kubernetes" in finding.seen for finding in report.findings)


@pytest.mark.parametrize(
    ("address", "user"),
    [(5, {}), ("https://127.0.0.1:1", {"auth-provider": {"name": "gcp"}})],
    ids=["an address that is a number", "a provider that says nothing"],
)
def test_a_kubeconfig_that_the_client_stumbles_over_is_said(
    tmp_path: Path, address: object, user: dict[str, Any]
) -> None:
    with pytest.raises(ClusterError, match="kubeconfig"):
        connect(kubeconfig(tmp_path, address, **user), None)


def test_no_kubeconfig_and_an_unknown_context_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match=r"there is no kubeconfig .*absent"):
        connect(tmp_path / "absent", None)
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'gone'}:{tmp_path / 'away'}")
    with pytest.raises(ClusterError, match=r"there is no kubeconfig .*gone or .*away"):
        connect(None, None)
    with pytest.raises(ClusterError, match="other"):
        connect(kubeconfig(tmp_path, "http://127.0.0.1:1"), "other")
    (tmp_path / "broken").write_text("{")
    with pytest.raises(ClusterError, match="kubeconfig"):
        connect(tmp_path / "broken", None)


def test_a_credential_program_that_hangs_ends_the_examination_and_not_the_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "READ_SECONDS", 0.5)
    monkeypatch.setattr(command, "GRACE_SECONDS", 0.5)
    program = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sleep", "args": ["5"]}}
    path = kubeconfig(tmp_path, "http://127.0.0.1:1", **program)
    began = time.monotonic()
    assert doctor(Request(None, path, None, as_json=False)) == 3
    assert time.monotonic() - began < 4.0
    assert "PGD099" in capsys.readouterr().out


def page(handler: BaseHTTPRequestHandler) -> None:
    is_second = "continue=more" in handler.path
    document = {
        "kind": "PodList",
        "apiVersion": "v1",
        "metadata": {} if is_second else {"continue": "more"},
        "items": [{"metadata": {"name": "b" if is_second else "a"}}],
    }
    say(200, document)(handler)


def test_a_list_is_read_to_its_last_page_and_its_items_have_a_kind(tmp_path: Path) -> None:
    with api_server(tmp_path, page) as path:
        pods = Reading(connect(path, None), Deadline(5.0)).items("/api/v1/pods", "pods")
    assert pods is not None
    assert [(pod["kind"], pod["metadata"]["name"]) for pod in pods] == [("Pod", "a"), ("Pod", "b")]


def test_what_may_not_be_read_is_noted_with_the_right_that_is_missing(tmp_path: Path) -> None:
    with api_server(tmp_path, status(403, 'pods is forbidden: User "u" cannot list')) as path:
        reading = Reading(connect(path, None), Deadline(5.0))
        assert reading.items("/api/v1/pods", "pods") is None
        assert reading.one("/api/v1/namespaces/x", "namespaces x") == (None, False)
    assert [(unread.what, unread.is_forbidden) for unread in reading.unread] == [
        ("list pods", True), ("get namespaces x", True),
    ]  # fmt: skip


def test_what_is_not_there_is_not_there_and_no_failure(tmp_path: Path) -> None:
    with api_server(tmp_path, status(404, "not found")) as path:
        reading = Reading(connect(path, None), Deadline(5.0))
        assert reading.one("/api/v1/namespaces/x", "namespaces x") == (None, True)
    assert reading.unread == []


def test_after_the_deadline_nothing_is_asked(tmp_path: Path) -> None:
    asked: list[str] = []
    with api_server(tmp_path, lambda handler: asked.append(handler.path)) as path:
        reading = Reading(connect(path, None), Deadline(0.0))
        assert reading.items("/api/v1/pods", "pods") is None
    assert asked == []
    assert "time" in reading.unread[0].reason


def test_a_pod_that_is_not_ready_is_told_from_an_api_server_that_cannot_reach_it(tmp_path: Path) -> None:
    with api_server(tmp_path, say(503, {"status": "not ready", "reason": "warming up"})) as path:
        reading = Reading(connect(path, None), Deadline(5.0))
        assert json.loads(reading.ask_pod("shop", "p", 8000, "/ready", 1.0)[1])["reason"] == "warming up"
    with api_server(tmp_path, status(503, "error trying to reach service: refused")) as path:
        reading = Reading(connect(path, None), Deadline(5.0))
        with pytest.raises(CallError, match="error trying to reach"):
            reading.ask_pod("shop", "p", 8000, "/ready", 1.0)


def test_a_body_without_end_is_not_kept(tmp_path: Path) -> None:
    with api_server(tmp_path, lambda handler: send(handler, 200, b"x" * 5000)) as path:
        server: KubeServer = connect(path, None)
        with pytest.raises(CallError, match="longer than"):
            server.call("GET", "/version", {}, None, 5.0, 1000)
