"""The sidecar's HTTP port: opened once by the supervisor, served by its worker, answered here while no worker serves.

    supervisor ──opens──► listening socket ──inherited──► worker: serves, and says so through a pipe
         └── answers meanwhile: GET /health and /ready, and why not for all else

The socket outlives every worker: no probe ever finds the port closed, and no two programs ask for it.

Rules: blocks for moments only; knows HTTP no better than a probe needs.
"""

import contextlib
import json
import os
import select
import socket
from collections.abc import Generator, Mapping

LISTENER_VARIABLE = "PAGODA_SIDECAR_LISTENER"
SERVING_VARIABLE = "PAGODA_SIDECAR_SERVING"
BACKLOG = 128
TALK_SECONDS = 0.2
_MAX_REQUEST_BYTES = 4096


class Door:
    """The supervisor's side: a listening socket, and the answers of one who stands in for the worker."""

    def __init__(self, host: str, port: int) -> None:
        """Open the port (0: a free one).

        Raises:
            OSError: the address is in use or not ours.
        """
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        self._listener = socket.socket(family, kind, protocol)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(address)
            self._listener.listen(BACKLOG)
            self._listener.setblocking(False)
        except BaseException:
            self._listener.close()
            raise
        self.is_served = False
        self._reading: int | None = None  # where a worker says that it serves

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    @contextlib.contextmanager
    def lent(self) -> Generator[tuple[Mapping[str, str], tuple[int, ...]]]:
        """While the context is open a worker may be started with these variables and descriptors."""
        self.ended()
        self._reading, writing = os.pipe()
        listener = self._listener.fileno()
        try:
            yield {LISTENER_VARIABLE: str(listener), SERVING_VARIABLE: str(writing)}, (listener, writing)
        finally:
            os.close(writing)

    def ended(self) -> None:
        """The worker is gone, so nobody serves."""
        self.is_served = False
        if self._reading is not None:
            os.close(self._reading)
            self._reading = None

    def stand_in(self, is_ready: bool, reason: str, seconds: float) -> None:
        """Wait for `seconds` until a worker says that it serves or somebody comes, who is answered."""
        waiting = [self._listener.fileno()] if self._reading is None else [self._listener.fileno(), self._reading]
        found, _, _ = select.select(waiting, (), (), seconds)
        if self._reading in found:
            self.is_served = os.read(self._reading or 0, 1) != b""
            if not self.is_served:  # it ends, and has not served
                self.ended()
        elif found:
            self._answer(is_ready, reason)

    def close(self) -> None:
        """Close the port, for us: a worker may have it still."""
        self.ended()
        self._listener.close()

    def _answer(self, is_ready: bool, reason: str) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:  # it has left, or a worker has taken it
            return
        with peer, contextlib.suppress(OSError):
            peer.settimeout(TALK_SECONDS)
            peer.sendall(_response(peer.recv(_MAX_REQUEST_BYTES), is_ready, reason))
            peer.shutdown(socket.SHUT_WR)
            peer.recv(_MAX_REQUEST_BYTES)  # its end: closed with bytes unread, the answer might be lost


def inherited() -> socket.socket | None:
    """Return the listening socket that our supervisor has opened; None: there is none, we open our own."""
    descriptor = os.environ.get(LISTENER_VARIABLE)
    return None if descriptor is None else socket.socket(fileno=int(descriptor))


def say_serving() -> None:
    """Tell our supervisor that we answer from now on."""
    descriptor = os.environ.get(SERVING_VARIABLE)
    if descriptor is not None:
        os.write(int(descriptor), b"1")
        os.close(int(descriptor))


def _response(request: bytes, is_ready: bool, reason: str) -> bytes:
    words = request.split(b"\r\n", 1)[0].split(b" ")
    path = words[1] if len(words) == 3 else b""
    is_good = path == b"/health" or (path == b"/ready" and is_ready)
    status = "ok" if path == b"/health" else "ready" if is_good else "not ready"
    body = json.dumps({"status": status, "reason": reason}).encode()
    head = f"HTTP/1.1 {'200 OK' if is_good else '503 Service Unavailable'}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
