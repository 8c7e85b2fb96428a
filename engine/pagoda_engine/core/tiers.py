"""The tiers below the device as the engine sees them: a client of the sidecar, or a fake of one.

Every blocking call is made from a tier thread, never from the engine's own. Any exception that a call raises means
that the tier is unavailable now (no sidecar, deadline passed, breaker open): counted, and the tokens are computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Part:
    """A run of blocks in one tier, as a lookup found it."""

    tier: str  # "ram" | "pool"
    first: int  # index into the addresses of the lookup
    count: int
    seconds: float  # estimated time to load it


@dataclass(frozen=True)
class BlockRecord:
    """What a tier is told of a block it stores."""

    address: bytes  # 32
    parent: bytes  # 32: the previous block's address, or the root
    index: int  # in its chain
    tokens: int
    tenant_tag: int


@dataclass(frozen=True)
class LoadResult:
    """What a load brought: `sources` names the tier of each verified block, contiguous from the load's `first`."""

    sources: list[str]
    reason: str | None  # why it ended short: absent, integrity, deadline, cancelled, unavailable, no_slots, …


@dataclass(frozen=True)
class StoreResult:
    """How many blocks were stored, were there already, or found no slot."""

    stored: int
    present: int
    refused: int


@dataclass(frozen=True)
class DigestRow:
    """A prefix digest and the whole blocks it covers at least."""

    digest: bytes  # 16
    tokens: int
    address: bytes  # of the last of these blocks


@dataclass(frozen=True)
class LoadReport:
    """How busy the engine is, for routers."""

    num_running: int
    num_waiting: int
    outstanding_seconds: float  # predicted work of all requests held
    prefill_tokens_per_second: float
    free_work_seconds: float  # work it holds without slowing others by more than 20 %


class TierClient(Protocol):
    """Blocking calls to the tiers below. Safe to use from several threads."""

    on_attach: Callable[[], None]  # set by the engine; called from any thread after each successful Attach

    @property
    def attached(self) -> bool:
        """Whether calls have a chance now."""

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
    ) -> LoadResult:
        """Load `addresses[first:stop]` of a chain that starts at `root`, in order.

        Calls `sink(position, payload)` for each; the payload is valid during that call only, and verified after it.
        A block that failed verification, and all after it, are not in the result's sources.
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
    ) -> None:
        """Tell the sidecar what the device holds and which prefixes were used."""

    def close(self) -> None:
        """Detach. Called by whoever made the client, after the engine has stopped."""
