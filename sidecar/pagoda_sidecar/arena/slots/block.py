"""One block in the RAM tier."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagoda_sidecar.arena.slots.run import ChainRun

KEY_BYTES = 16


@dataclass(slots=True, eq=False)
class Block:
    """A block and its slot. Owned by the index; leases and jobs hold references, never copies.

    A block is *named* while its address leads to it. A dropped or abandoned one keeps its slot until its last
    reference goes, because somebody may still touch the slot.
    """

    address: bytes  # 32
    parent: bytes  # 16: the first bytes of the previous address, or of the root
    index: int
    tokens: int
    slot: int
    generation: int = 0
    tenant_tag: int = 0
    references: int = 0
    is_named: bool = True
    is_sealed: bool = False
    # False for a record an earlier life sealed, until its payload has been hashed once
    is_verified: bool = True
    # Whether every block before it lies in this tier as well
    is_rooted: bool = False
    # The pool had it: its number of upheavals then, and when
    pool_mark: tuple[int, float] | None = None
    is_on_disk: bool = False  # the disk tier holds a copy
    num_uses: int = 0  # that ended here
    num_touches: int = 0
    run: "ChainRun | None" = field(default=None, repr=False)  # of the index, while it is named

    key: bytes = field(init=False)  # the half of the address by which its children name it

    def __post_init__(self) -> None:
        """Keep the key, which is asked for again and again."""
        self.key = self.address[:KEY_BYTES]
