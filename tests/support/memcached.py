"""A real memcached on a free loopback port, for tests that need its faults as much as its answers.

    with running_memcached(memory_mib=64) as node:
        node.address                     # "127.0.0.1:41211"
        node.stop(); node.resume()       # SIGSTOP: the kernel still accepts connections, nobody answers
        node.kill(); node.restart()      # SIGKILL; again on the same port, empty

Whatever happens in the block, the process has ended (by its pid) when the block is left.
"""

import contextlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Sequence

import pytest

from tests.support.ports import free_port

START_SECONDS = 10.0
_START_TRIES = 5  # a port found free may be taken by somebody else before memcached binds it

needs_memcached = pytest.mark.skipif(shutil.which("memcached") is None, reason="memcached is not installed")


class Memcached:
    """One memcached process. Made by `running_memcached`, which also ends it."""

    def __init__(self, arguments: Sequence[str], tls: ssl.SSLContext | None = None, log_in: bytes = b"") -> None:
        """`tls` and `log_in` ("user password") are for our own commands, if it wants them."""
        self._arguments = tuple(arguments)
        self._tls = tls
        self._log_in = log_in
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def address(self) -> str:
        """`host:port`, as in pool-nodes.json."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id; there must be a process."""
        assert self._process is not None, "memcached is not running"
        return self._process.pid

    def stop(self) -> None:
        """Black-hole it: connections stay open and are still accepted by the kernel, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `stop`."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it at once and wait until it is gone; fine if it is not running."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()  # also ends a stopped process
            process.wait()

    def restart(self) -> None:
        """End it if it runs and start it again, empty, on the same port."""
        self.kill()
        self._start(self.port)

    def move(self) -> None:
        """End it if it runs and start it again, empty, on another port (a pod that came back with a new IP)."""
        self.kill()
        self.start()

    def start(self) -> None:
        """Start it on a free port."""
        for attempt in range(_START_TRIES):
            try:
                return self._start(free_port())
            except ChildProcessError:
                if attempt == _START_TRIES - 1:
                    raise
        return None

    def command(self, text: bytes, end: bytes = b"\r\n", timeout: float = 5.0) -> bytes:
        """Send `text` on a connection of its own and return what comes back, up to and with `end`."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as plain:
            connection = plain if self._tls is None else self._tls.wrap_socket(plain, server_hostname="127.0.0.1")
            with connection:
                if self._log_in:
                    line = b"set x 0 -1 %d\r\n%b\r\n" % (len(self._log_in), self._log_in)
                    assert _ask(connection, line, b"\r\n") == b"STORED\r\n"
                return _ask(connection, text, end)

    def statistics(self, group: str = "") -> dict[str, str]:
        """Return what `stats [group]` says."""
        lines = self.command(f"stats {group}".strip().encode() + b"\r\n", end=b"END\r\n").decode().splitlines()
        return {line.split(" ", 2)[1]: line.split(" ", 2)[2] for line in lines if line.startswith("STAT ")}

    def _start(self, port: int) -> None:
        self.port = port
        command = ["memcached", "-l", "127.0.0.1", "-p", str(port), *self._arguments]
        if os.geteuid() == 0:
            command += ["-u", "nobody"]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self._process.poll() is not None:
                self._process = None
                raise ChildProcessError(f"memcached ended at once: {' '.join(command)}")
            with contextlib.suppress(OSError):
                if self.command(b"mn\r\n") == b"MN\r\n":
                    return
            time.sleep(0.01)
        self.kill()
        raise TimeoutError(f"memcached did not answer within {START_SECONDS} s: {' '.join(command)}")


def _ask(connection: socket.socket, text: bytes, end: bytes) -> bytes:
    connection.sendall(text)
    answer = b""
    while not answer.endswith(end):
        received = connection.recv(1 << 16)
        if not received:
            break
        answer += received
    return answer


@contextlib.contextmanager
def running_memcached(
    memory_mib: int = 64,
    item_limit: str = "8m",
    threads: int = 1,
    arguments: Sequence[str] = (),
    tls: ssl.SSLContext | None = None,
    log_in: bytes = b"",
) -> Iterator[Memcached]:
    """Run one memcached while the context is open.

    `memory_mib` is `-m`, `item_limit` is `-I` (e.g. "1m"), `arguments` are further flags as they are. With `-Z` and
    `-Y` among them `tls` and `log_in` are for this object's own commands.
    """
    node = Memcached(["-m", str(memory_mib), "-I", item_limit, "-t", str(threads), *arguments], tls, log_in)
    try:
        node.start()
        yield node
    finally:
        node.kill()
