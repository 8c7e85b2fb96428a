"""What an engine imports: the tiers below the device, as blocking calls that never cost more than their deadline."""

from collections.abc import Callable, Sequence
from pathlib import Path

from pagoda_sidecar.client_values import (
    BlockRecord,
    DigestRow,
    EngineIdentity,
    LoadReport,
    LoadResult,
    Part,
    StoreResult,
    TierUnavailable,
)

__all__ = [
    "BlockRecord",
    "DigestRow",
    "EngineIdentity",
    "LoadReport",
    "LoadResult",
    "Part",
    "StoreResult",
    "TierClient",
    "TierUnavailable",
]


class TierClient:
    """An engine's side of the tier contract. Thread safe; every call blocks for its timeout at most."""

    def __init__(self, volume: Path, identity: EngineIdentity) -> None:
        self.on_attach: Callable[[], None] | None = None
        # (tier, reason) of each record that failed verification on its way into the device
        self.on_integrity_failure: Callable[[str, str], None] | None = None
        self._volume = volume
        self._identity = identity

    @property
    def attached(self) -> bool:
        """Whether a sidecar is attached and answering."""
        return False

    @property
    def off_reason(self) -> str:
        """Why tiers are off, empty while the RAM tier is usable."""
        return "not attached yet"

    def lookup(self, addresses: Sequence[bytes], timeout_seconds: float) -> list[Part]:
        """Return the runs present below, contiguous from position 0; empty is a miss."""
        raise TierUnavailable("no_sidecar")

    def load(
        self,
        root: bytes,
        addresses: Sequence[bytes],
        first: int,
        stop: int,
        sink: Callable[[int, memoryview], None],
        timeout_seconds: float,
        cancelled: Callable[[], bool],
    ) -> LoadResult:
        """Copy the blocks `addresses[first:stop]` out of the arena through `sink(position, payload)`, in order."""
        raise TierUnavailable("no_sidecar")

    def store(
        self, blocks: Sequence[BlockRecord], source: Callable[[int, memoryview], None], timeout_seconds: float
    ) -> StoreResult:
        """Store `blocks`; `source(i, view)` must have filled the payload of `blocks[i]` when it returns."""
        raise TierUnavailable("no_sidecar")

    def report(
        self,
        rows: Sequence[DigestRow],
        device_added: Sequence[bytes],
        device_removed: Sequence[bytes],
        touched: Sequence[bytes],
        load: LoadReport | None,
        timeout_seconds: float,
    ) -> None:
        """Tell the sidecar of digests, device residency, uses and load."""
        raise TierUnavailable("no_sidecar")

    def hand_over(self, budget_bytes: int, budget_seconds: float) -> int:
        """Have blocks pushed to the pool that lacks them; return how many were."""
        raise TierUnavailable("no_sidecar")

    def close(self) -> None:
        """Detach, unmap, release the lock."""
