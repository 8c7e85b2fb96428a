"""The tiers below the device as the engine sees them: a client of the sidecar, or a fake of one.

Every blocking call is made from a tier thread, never from the engine's own. It raises `TierUnavailable`, with a reason
for the metrics, when there is no sidecar, a deadline has passed or the breaker is open: the tokens are then computed.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from pagoda_sidecar.client import (
    BlockRecord,
    DigestRow,
    LoadReport,
    LoadResult,
    Part,
    StoreResult,
    TierUnavailable,
)

__all__ = [
    "BlockRecord",
    "DigestRow",
    "LoadReport",
    "LoadResult",
    "Part",
    "StoreResult",
    "TierClient",
    "TierUnavailable",
]


class TierClient(Protocol):
    """Blocking calls to the tiers below. Safe to use from several threads."""

    on_attach: Callable[[], None] | None  # set by the engine; called from any thread after each successful Attach
    on_integrity_failure: Callable[[str, str], None] | None  # set by the engine; told (tier, reason) of each bad record

    @property
    def attached(self) -> bool:
        """Whether calls have a chance now."""

    @property
    def has_ram(self) -> bool:
        """Whether there is a RAM tier now: without one nothing is stored below or loaded from there."""

    def lookup(self, addresses: Sequence[bytes], timeout_seconds: float) -> list[Part]:
        """Return the longest run present, contiguous from index 0 of `addresses` (a piece of a chain)."""

    def load(
        self,
        root: bytes,
        addresses: Sequence[bytes],
        first: int,
        stop: int,
        sink: Callable[[int, memoryview], None],
        timeout_seconds: float,
        cancelled: Callable[[], bool],
        *,
        back_first: bool = False,
        arrived: Callable[[int, str], None] | None = None,
        floor: Callable[[], int] | None = None,
    ) -> LoadResult:
        """Load `addresses[first:stop]` of a chain that starts at `root`, in order, or from the end backwards.

        Calls `sink(position, payload)` for each; the payload is valid during that call only, and verified after it:
        then `arrived(position, source)` is called. A block that failed verification, and all after it, are neither told
        of nor in the result's sources. Back first the load is complete when all from `floor()` on has arrived.
        """

    def store(
        self, blocks: Sequence[BlockRecord], source: Callable[[int, memoryview], None], timeout_seconds: float
    ) -> StoreResult:
        """Store blocks that are not present; `source(position, slot)` must fill `slot` with the block's payload."""

    def report(
        self,
        rows: Sequence[DigestRow],
        device_added: Sequence[bytes],
        device_removed: Sequence[bytes],
        touched: Sequence[bytes],
        load: LoadReport | None,
        timeout_seconds: float,
        parked: Sequence[bytes] = (),
    ) -> None:
        """Tell the sidecar what the device holds, which prefixes were used and which chains will be wanted again."""

    def close(self) -> None:
        """Detach. Called by whoever made the client, after the engine has stopped."""
