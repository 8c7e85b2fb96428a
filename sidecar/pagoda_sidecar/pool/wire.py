"""What a connection reads and writes through: a bare socket, or TLS over one. Neither ever blocks.

What cannot be done yet is raised as the socket module does it: BlockingIOError, or with TLS, which may have to read
before it can write and the other way round, `ssl.SSLWantReadError` and `ssl.SSLWantWriteError`. All are OSErrors.
"""

import itertools
import socket
import ssl
from collections.abc import Sequence
from typing import Protocol

_MAX_SEND_BUFFERS = 64  # in one call; the kernel takes 1024
_TLS_RECORD_BYTES = 1 << 14


class Wire(Protocol):
    """One open connection to a node."""

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        ...

    def handshake(self) -> None:
        """Go on with what must be agreed before the first byte; returns once it is."""
        ...

    def send(self, buffers: Sequence[memoryview]) -> int:
        """Send some of `buffers`, in order; return how many bytes. After "not yet" the same bytes must come again."""
        ...

    def receive(self, buffers: Sequence[memoryview]) -> int:
        """Receive into `buffers`, in order; return how many bytes, 0 at the end."""
        ...

    @property
    def is_stale(self) -> bool:
        """Whether an unused connection has ended or has something to say that nobody asked for."""
        ...

    def close(self) -> None:
        """Close the socket; fine twice."""
        ...


class PlainWire:
    """A bare socket."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._peer.fileno()

    def handshake(self) -> None:
        """Nothing to agree on."""

    def send(self, buffers: Sequence[memoryview]) -> int:
        """Send without joining; see `Wire`."""
        return self._peer.sendmsg(buffers[:_MAX_SEND_BUFFERS])

    def receive(self, buffers: Sequence[memoryview]) -> int:
        """Receive in place; see `Wire`."""
        return self._peer.recvmsg_into(buffers)[0]

    @property
    def is_stale(self) -> bool:
        """See `Wire`."""
        try:
            self._peer.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        """Close the socket."""
        self._peer.close()


class TlsWire:
    """TLS over a socket, the peer's certificate held against `host` (a name or an IP address)."""

    def __init__(self, peer: socket.socket, context: ssl.SSLContext, host: str) -> None:
        """Take `peer` over.

        Raises:
            OSError, ValueError: `host` cannot be a certificate's.
        """
        self._peer = context.wrap_socket(peer, server_hostname=host, do_handshake_on_connect=False)

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._peer.fileno()

    def handshake(self) -> None:
        """Agree on keys; see `Wire`."""
        self._peer.do_handshake()

    def send(self, buffers: Sequence[memoryview]) -> int:
        """Send one buffer, or some small ones as one TLS record: each call makes a record of its own."""
        if len(buffers[0]) >= _TLS_RECORD_BYTES or len(buffers) == 1:
            return self._peer.send(buffers[0])
        return self._peer.send(_front(buffers, _TLS_RECORD_BYTES))

    def receive(self, buffers: Sequence[memoryview]) -> int:
        """Receive what is left of one TLS record, in place; see `Wire`."""
        return self._peer.recv_into(buffers[0])

    @property
    def is_stale(self) -> bool:
        """See `Wire`. Tickets and key updates are taken in here, they are no answer."""
        try:
            self._peer.recv(1)
        except ssl.SSLWantReadError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        """Close the socket, without farewell: the peer may be dead."""
        self._peer.close()


def _front(buffers: Sequence[memoryview], num_bytes: int) -> bytes:
    """Return the first `num_bytes` of `buffers`, joined."""
    ends = itertools.accumulate(map(len, buffers), initial=0)
    return b"".join(
        buffer[: num_bytes - start] for buffer, start in zip(buffers, ends, strict=False) if start < num_bytes
    )
