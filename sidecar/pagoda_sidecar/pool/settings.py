"""What can be set about the pool tier. Deadlines are derived from these and from the bytes an operation moves."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PoolSettings:
    """Frozen; the defaults suit loopback up to one data centre."""

    connect_seconds: float = 0.5
    """From looking up a node's name to the answer of its first command."""

    operation_seconds: float = 0.5
    """Longest silence of a node that owes an answer, and longest wait for a free connection to it."""

    min_bytes_per_second: float = 2e6
    """Bandwidth below which a node is of no use: a whole exchange may take `operation_seconds` + bytes ÷ this. Low:
    an engine that computes beside a slow load gains from any pace, and cancels what comes too late."""

    connections_per_operation: int = 2
    """Connections per node and kind of operation (probe, fetch, store), so that stores never hold up loads."""

    window_bytes: int = 16 << 20
    """Payload bytes asked for on one connection before the first is answered; one larger record goes alone."""

    retry_seconds: float = 1.0
    """Pause before a failed node is pinged, and between pings."""

    max_retry_seconds: float = 30.0
    """To this the pause grows while a node answers pings but fails at its work."""

    absent_seconds: float = 1.0
    """So long a record that the pool said it lacks is not asked for again: another pod's store is hidden no longer."""

    max_absent: int = 65_536
    """Such records remembered."""
