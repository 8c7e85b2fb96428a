"""What goes into and comes out of the tier client: plain frozen values that an engine may keep for ever.

Rules: no I/O, no grpc; positions are always indices into the addresses the caller passed.
"""

from dataclasses import dataclass


class TierUnavailable(Exception):
    """The tiers below the device cannot be used now; the engine goes on without them.

    `reason` is a short metric label: no_sidecar, deadline, breaker, refused, ram_off, closed.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


@dataclass(frozen=True)
class EngineIdentity:
    """What an engine announces of itself when it attaches; one for the process's life."""

    namespace: bytes  # 32
    payload_bytes: int  # of one block
    block_tokens: int
    model_names: tuple[str, ...]
    template_digest: bytes  # 16
    codec: int = 0  # as in the record header


@dataclass(frozen=True)
class Part:
    """A run of addresses that lies in one tier."""

    tier: str  # ram | disk | pool
    first: int
    count: int
    seconds: float  # estimated time to load the run


@dataclass(frozen=True)
class BlockRecord:
    """A full block to be stored."""

    address: bytes  # 32
    parent: bytes  # 32: the previous address, or the root
    index: int  # in its chain
    tokens: int
    tenant_tag: int


@dataclass(frozen=True)
class LoadResult:
    """The blocks that arrived: `sources[i]` is the tier that supplied position `first + i`, or `stop - 1 - i` if the
    load was back first and granted to the end (`arrived` told the positions in any case).

    `reason` is None when everything asked for arrived, else a short metric label of what ended the run.
    """

    sources: list[str]
    reason: str | None


@dataclass(frozen=True)
class StoreResult:
    """Numbers of blocks: now visible below, there already, and turned away (no slot, or a commit refused)."""

    stored: int
    present: int
    refused: int


@dataclass(frozen=True)
class DigestRow:
    """A digest of a request's canonical bytes and the whole blocks that those bytes cover at least."""

    digest: bytes  # 16
    tokens: int
    address: bytes  # of the last covered block


@dataclass(frozen=True)
class LoadReport:
    """What the engine is busy with, for routers."""

    num_running: int
    num_waiting: int
    outstanding_seconds: float
    prefill_tokens_per_second: float
    free_work_seconds: float  # work it holds without slowing others by more than 20 %
    ram_seconds_per_token: float = 0.0  # what loading a token has cost lately; 0 while unknown
    disk_seconds_per_token: float = 0.0
    hit_ratio: float | None = None  # of prompt tokens lately; None: there were none
