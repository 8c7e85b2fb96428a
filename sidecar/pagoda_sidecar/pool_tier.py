"""What the sidecar needs of a pool tier."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pagoda_protocol.records import RecordHeader


class PoolTier(Protocol):
    """A tier that all pods share. Every method is bounded by its own deadlines and never raises for its nodes."""

    @property
    def off_reason(self) -> str:
        """Why the tier is off; empty while it is on."""
        ...

    @property
    def is_configured(self) -> bool:
        """Whether there should be a pool."""
        ...

    def enabled(self) -> bool:
        """Whether calls reach anything."""
        ...

    @property
    def num_upheavals(self) -> int:
        """A number that rises when the pool may have lost what it held: other nodes, or one that came back."""
        ...

    async def look(self) -> Mapping[str, str]:
        """Return what is wrong with each node, by name; empty if nothing."""
        ...

    def set_namespace(self, namespace: bytes) -> None:
        """Read and write records of this namespace (32 bytes) from now on."""
        ...

    async def probe(self, addresses: Sequence[bytes]) -> list[bool]:
        """Say which records exist; no use of them."""
        ...

    async def fetch(
        self,
        addresses: Sequence[bytes],
        destinations: Sequence[memoryview],
        on_ready: Callable[[int, RecordHeader], None],
    ) -> None:
        """Read payloads straight into `destinations`; `on_ready(i, header)` when one has landed and was verified."""
        ...

    async def store_all(self, records: Sequence[tuple[RecordHeader, memoryview]]) -> list[str]:
        """Write sealed records, each held against its header first; return what became of each.

        "stored" and "exists" are good, "corrupt" is a payload that is not what was sealed, all else was not stored.
        """
        ...

    def seconds_per_byte(self) -> float:
        """Measured pace of reads."""
        ...

    def latency_seconds(self) -> float:
        """Measured time to the first byte."""
        ...

    async def close(self) -> None:
        """Let go of all connections."""
        ...
