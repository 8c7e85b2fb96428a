"""Free TCP ports on loopback.

Ports are taken from below the range that the kernel hands to outgoing connections. A part keeps its port while it is
down, and whoever then polls that port from within the outgoing range can be given it as its own source port: the
connection succeeds with itself, and the part can never listen there again.
"""

import random
import socket
from collections.abc import Iterator
from pathlib import Path

LOOPBACK = "127.0.0.1"
_FIRST = 10240
_DEFAULT_OUTGOING = 32768
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")


class NoPortError(Exception):
    """No free port was found."""


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Tell whether a server could listen on `port` now."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT does not count
        try:
            listener.bind((host, port))
            listener.listen(1)
        except (OSError, OverflowError):
            return False
    return True


def is_forbidden(port: int) -> bool:
    """Tell whether this user may not listen on `port` at all (below 1024)."""
    with socket.socket() as listener:
        try:
            listener.bind((LOOPBACK, port))
        except PermissionError:
            return True
        except OSError:
            return False
    return False


def free_ports(count: int, excluded: frozenset[int] = frozenset()) -> list[int]:
    """Return `count` different ports that are free now.

    Raises:
        NoPortError: there are not as many.
    """
    ports: list[int] = []
    for port in _candidates():
        if len(ports) == count:
            break
        if port not in excluded and is_free(port):
            ports.append(port)
    if len(ports) < count:
        raise NoPortError(f"found {len(ports)} free ports of the {count} that are needed on {LOOPBACK}")
    return ports


def _candidates() -> Iterator[int]:
    end = outgoing_start()
    yield from random.SystemRandom().sample(range(_FIRST, end), end - _FIRST)


def outgoing_start() -> int:
    """Return the first port that the kernel gives to outgoing connections, if servers have enough room below it."""
    try:
        first = int(_RANGE_FILE.read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        first = _DEFAULT_OUTGOING
    return first if first >= _FIRST + 1000 else 65536
