"""Who gets in: the socket is its own user's alone, and HTTP reads and never changes."""

import contextlib
import http.client
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pagoda_protocol.tier import SOCKET_NAME
from tests.sidecar.support import SidecarProcess, client_of, sidecar_process, wait_until

NOBODY = 65534
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
# Every route, and what its methods answer; any other method is a 405.
ROUTES: dict[str, dict[str, int]] = {
    "/health": {"GET": 200, "HEAD": 200},
    "/metrics": {"GET": 200, "HEAD": 200},
    "/ready": {"GET": 200, "HEAD": 200},
    "/v1/prefixes?follow=false": {"GET": 200, "HEAD": 200},
    "/v1/summary": {"GET": 200, "HEAD": 200},
    "/drain": dict.fromkeys(METHODS, 404),
}
CONNECT = """
import os, socket, sys
if int(sys.argv[2]):
    os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
except OSError as error:
    print(type(error).__name__)
else:
    print("connected")
"""


@pytest.fixture(scope="module")
def sidecar() -> Iterator[SidecarProcess]:
    with sidecar_process() as running:
        running.folder.chmod(0o755)  # that only what is to be tested is closed
        wait_until(lambda: (running.volume / SOCKET_NAME).exists(), what="the socket")
        yield running


def connect_as(uid: int, sidecar: SidecarProcess) -> str:
    """Try to connect from a process of the user `uid`; return what came of it."""
    command = [sys.executable, "-I", "-c", CONNECT, str(sidecar.volume / SOCKET_NAME), str(uid)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()


def test_socket_and_folder_have_modes_that_keep_others_out(sidecar: SidecarProcess) -> None:
    assert stat.S_IMODE((sidecar.volume / SOCKET_NAME).stat().st_mode) == 0o600
    assert stat.S_IMODE(sidecar.volume.stat().st_mode) == 0o700
    for name in ("arena", "engine.lock"):
        if (path := sidecar.volume / name).exists():
            assert not stat.S_IMODE(path.stat().st_mode) & 0o077, name


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("is_folder_open", [False, True])
def test_another_user_cannot_connect_even_where_the_folder_is_open(
    sidecar: SidecarProcess, is_folder_open: bool
) -> None:
    sidecar.volume.chmod(0o777 if is_folder_open else 0o700)
    try:
        assert connect_as(NOBODY, sidecar) == "PermissionError"
        assert connect_as(0, sidecar) == "connected"
    finally:
        sidecar.volume.chmod(0o700)


def test_each_http_route_answers_get_alone_and_none_changes_the_state(sidecar: SidecarProcess) -> None:
    def status(method: str, path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", sidecar.port, timeout=10)
        try:
            connection.request(method, path)
            return connection.getresponse().status
        finally:
            connection.close()

    with client_of(sidecar) as client:
        for path, answers in ROUTES.items():
            found = {method: status(method, path) for method in METHODS}
            assert found == {method: answers.get(method, 405) for method in METHODS}, path
        assert client.attached


def test_garbage_on_the_socket_is_no_more_than_a_closed_connection(sidecar: SidecarProcess) -> None:
    for data in (
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(range(256)) * 64,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 4096,
    ):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(str(sidecar.volume / SOCKET_NAME))
            connection.sendall(data)
            with contextlib.suppress(ConnectionError):
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass
    with client_of(sidecar) as client:
        assert client.attached
