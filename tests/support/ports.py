"""Ports for programs of tests that keep theirs while they are down.

As the product takes them (`pagoda_cli.ports` says why: not from those of outgoing connections), and none twice in one
process: who asks need not listen before the next one asks.
"""

from pagoda_cli.ports import free_ports

_given: set[int] = set()


def free_port() -> int:
    """Return a loopback TCP port that nobody listens on now, and that this process was not given before."""
    [port] = free_ports(1, frozenset(_given))
    _given.add(port)
    return port
