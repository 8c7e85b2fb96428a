"""The sidecar's port, whoever answers it: no probe finds it closed, and one passes whatever the worker does."""

import contextlib
import http.client
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from pagoda_sidecar.door import Door
from pagoda_sidecar.supervisor import Supervisor
from tests.sidecar.support import SidecarProcess, client_of, sidecar_process, wait_until
from tests.support.ports import free_port


def ask(port: int, path: str) -> tuple[int, dict[str, str]]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


class Asking(threading.Thread):
    """Asks again and again; `failures` are those that got no answer."""

    def __init__(self, port: int, path: str) -> None:
        super().__init__()
        self.statuses: list[int] = []
        self.failures: list[Exception] = []
        self.is_over = False
        self._port, self._path = port, path

    def run(self) -> None:
        while not self.is_over:
            try:
                self.statuses.append(ask(self._port, self._path)[0])
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(error)
            time.sleep(0.01)


@contextlib.contextmanager
def asking(port: int, path: str) -> Iterator[Asking]:
    thread = Asking(port, path)
    thread.start()
    try:
        yield thread
    finally:
        thread.is_over = True
        thread.join()


def stop(supervisor: Supervisor) -> None:
    supervisor._is_stopping = True


@contextlib.contextmanager
def supervised(command: list[str], port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    """Run a supervisor in a thread, which may take no signals."""
    monkeypatch.setattr("pagoda_sidecar.supervisor.signal.signal", lambda *_: None)
    supervisor = Supervisor(command, lambda: Door("127.0.0.1", port))
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    try:
        yield supervisor
    finally:
        stop(supervisor)
        if supervisor._worker is not None:
            supervisor._worker.kill()
        thread.join()


def test_a_worker_that_crash_loops_passes_the_startup_probe_after_its_first_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    with supervised([sys.executable, "-c", "import time; time.sleep(0.3); raise SystemExit(3)"], port, monkeypatch):
        wait_until(lambda: _listens(port), what="the port")
        status, body = ask(port, "/ready")
        assert (status, body["reason"]) == (503, "the worker is starting")
        assert ask(port, "/health")[0] == 200
        wait_until(lambda: ask(port, "/ready")[0] == 200, what="the first end of the worker")
        with asking(port, "/ready") as probe:
            time.sleep(1.5)  # over several lives
        assert set(probe.statuses) == {200}
        assert probe.failures == []
        assert "ended and is started anew: 3" in ask(port, "/ready")[1]["reason"]
        assert ask(port, "/v1/summary")[0] == ask(port, "/metrics")[0] == 503


def test_a_program_that_cannot_be_started_passes_the_probe_too(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with supervised(["/nowhere/at/all"], port, monkeypatch):
        wait_until(lambda: _listens(port) and ask(port, "/ready")[0] == 200, what="an answer")
        assert "No such file" in ask(port, "/ready")[1]["reason"]


def test_a_port_that_is_taken_is_tried_again_until_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = int(other.getsockname()[1])
        with supervised([sys.executable, "-c", "import time; time.sleep(60)"], port, monkeypatch) as supervisor:
            wait_until(lambda: "cannot listen" in supervisor._reason, what="a reason")
            other.close()
            wait_until(lambda: _listens(port), what="the port")
            assert ask(port, "/health")[0] == 200


def test_who_says_nothing_or_no_http_holds_up_nobody_for_long() -> None:
    door = Door("127.0.0.1", 0)
    try:
        for said in (b"", b"\x00\xff", b"GET /ready", b"GET /ready HTTP/1.1\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", door.port)) as peer:
                peer.sendall(said)
                began = time.monotonic()
                door.stand_in(True, "why", 1.0)
                assert time.monotonic() - began < 2.0
        with socket.create_connection(("127.0.0.1", door.port)):
            pass  # has left before it was answered
        door.stand_in(True, "why", 1.0)
    finally:
        door.close()


def test_no_question_is_lost_while_workers_come_and_go() -> None:
    with sidecar_process() as sidecar:
        wait_until(lambda: _listens(sidecar.port), what="the port")
        with asking(sidecar.port, "/health") as probe:
            wait_until(lambda: _is_served(sidecar), what="the worker")
            for _ in range(3):
                sidecar.kill_worker()
                wait_until(lambda: not _is_served(sidecar), what="the end of the worker")
                assert ask(sidecar.port, "/ready")[0] == 200
                wait_until(lambda: _is_served(sidecar), what="the next worker")
        # What a killed worker had accepted is lost with it; nothing else is.
        assert len(probe.failures) <= 3
        assert not [error for error in probe.failures if isinstance(error, ConnectionRefusedError)]
        assert set(probe.statuses) == {200}


@pytest.mark.parametrize("ram_bytes", [0, 2 * 2**20])
def test_a_sidecar_is_ready_when_it_is_known_whether_there_is_an_arena(ram_bytes: int) -> None:
    with sidecar_process(ram_bytes) as sidecar:
        wait_until(lambda: _listens(sidecar.port) and _is_served(sidecar), what="the worker")
        wait_until(lambda: ask(sidecar.port, "/ready")[0] == 200, what="the arena, or its absence")


def test_a_sidecar_with_a_wrong_secret_is_ready_with_its_tiers_off() -> None:
    with sidecar_process() as sidecar:
        (sidecar.folder / "secret" / "digest").write_bytes(b"wrong")
        sidecar.stop()
        sidecar.start()
        wait_until(lambda: _listens(sidecar.port) and _is_served(sidecar), what="the worker")
        status, body = ask(sidecar.port, "/ready")
        assert status == 200
        assert body["reason"].startswith("pool secret:")
        summary = json.loads(sidecar.get("/v1/summary"))
        assert summary["tiers"]["ram"]["state"] == "off"


def test_a_sidecar_that_waits_for_an_engine_to_let_go_is_ready() -> None:
    with sidecar_process() as sidecar, client_of(sidecar):
        (sidecar.volume / "arena").unlink()  # the next worker must make one, and the engine holds its lock
        (sidecar.volume / "tier.sock").unlink()  # and cannot attach
        sidecar.kill_worker()
        wait_until(lambda: _is_served(sidecar), what="the next worker")
        wait_until(lambda: ask(sidecar.port, "/ready")[0] == 200, what="an answer")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_served(sidecar: SidecarProcess) -> bool:
    """Whether the worker answers, not its supervisor."""
    return ask_text(sidecar.port, "/metrics").startswith("# HELP")


def ask_text(port: int, path: str) -> str:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException):
            return ""
