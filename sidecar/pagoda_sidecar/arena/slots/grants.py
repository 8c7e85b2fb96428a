"""What is asked of the RAM tier and what it answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pagoda_sidecar.arena.slots.block import Block


@dataclass(frozen=True)
class NewBlock:
    """A block the engine wants to store. `parent` is the previous address or the root, 32 bytes."""

    address: bytes
    parent: bytes
    index: int
    tokens: int
    tenant_tag: int


@dataclass(frozen=True)
class Run:
    """The blocks `chain[first:stop]`; `root` is what the chain's first address follows on."""

    chain: Sequence[bytes]
    root: bytes
    first: int
    stop: int


@dataclass
class Reservation:
    """The answer to a reserve: `(position, block)` per slot lent, and the numbers of the others."""

    slots: list[tuple[int, Block]] = field(default_factory=list)
    num_present: int = 0
    num_refused: int = 0


@dataclass
class Grant:
    """The answer to a load: blocks `first` to `stop`, each either sealed already, or pending and ours to fetch."""

    stop: int
    blocks: list[tuple[int, Block]] = field(default_factory=list)
    fetches: list[tuple[int, Block]] = field(default_factory=list)


@dataclass(frozen=True)
class Holder:
    """Who asks for a lease."""

    attachment: bytes
