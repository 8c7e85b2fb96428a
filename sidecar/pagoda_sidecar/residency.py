"""What lies in RAM and on disk, kept in step: chains over both, each block's `is_on_disk`, and what hints may say."""

from collections.abc import Callable

from pagoda_sidecar.arena.slots.block import Block
from pagoda_sidecar.arena.slots.index import RamIndex
from pagoda_sidecar.counters import Counters
from pagoda_sidecar.disk.chains import RAM
from pagoda_sidecar.disk.tier import DiskTier


class Residency:
    """See the head of this file. Lives in the control loop."""

    def __init__(self, disk: DiskTier, counters: Counters) -> None:
        # Told of an address that came to a tier or left it
        self.on_change: Callable[[bytes], None] = lambda address: None
        # Told that RAM holds one more or one less
        self.on_ram: Callable[[], None] = lambda: None
        self._disk = disk
        self._counters = counters
        self._index: RamIndex | None = None
        disk.on_residency = lambda address: self.on_change(address)
        disk.index.on_presence = self._disk_changed

    def follow(self, index: RamIndex) -> None:
        """Take the RAM tier's index for what is in RAM, from now on."""
        self._index = index
        index.on_residency = lambda address: self.on_change(address)
        index.on_presence = self._ram_changed
        index.on_eviction = self._evicted
        for block in index:
            if block.is_sealed:
                self._ram_changed(block, True)

    def unfollow(self) -> None:
        """Take RAM for empty."""
        if self._index is not None:
            self._index.on_presence = lambda block, is_there: None
            self._index.on_eviction = lambda block: None
            self._index = None
            self._disk.chains.clear(RAM)

    def is_in_ram(self, address: bytes) -> bool:
        """Whether the chain of `address` is whole in RAM."""
        block = None if self._index is None else self._index.sealed(address)
        return block is not None and block.is_rooted

    def is_below(self, address: bytes) -> bool:
        """Whether the chain of `address` is whole over RAM and disk."""
        return self._disk.is_rooted(address)

    def _ram_changed(self, block: Block, is_there: bool) -> None:
        if is_there:
            block.is_on_disk = self._disk.index.get(block.address) is not None
            self._disk.chains.add(RAM, block.address, block.parent, block.index)
        else:
            self._disk.chains.remove(RAM, block.address)
        self.on_ram()

    def _evicted(self, block: Block) -> None:
        if not block.is_on_disk and self._disk.enabled():
            self._counters.demotions.add(1, outcome="lost")

    def _disk_changed(self, address: bytes, is_there: bool) -> None:
        block = None if self._index is None else self._index.named(address)
        if block is not None:
            block.is_on_disk = is_there
