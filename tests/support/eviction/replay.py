"""Replays: what a cache hits of a trace, front of each prompt first, as lookups count it."""

import heapq
import math
from collections.abc import Iterable
from typing import Protocol

from pagoda_sidecar.arena.slots.block import Block
from pagoda_sidecar.arena.slots.index import RamIndex
from pagoda_sidecar.arena.slots.policy import FadingFrequency
from tests.support.eviction.traces import Request

_ROOT = bytes(32)


class Cache(Protocol):
    """Something that serves requests."""

    def serve(self, request: Request) -> int:
        """Store what is missing of the chain; return how many blocks of the prompt were usable before."""
        ...


class RamReplay:
    """The RAM tier's index, called as loads, stores and reports call it."""

    def __init__(self, num_slots: int, policy: FadingFrequency | None = None) -> None:
        self.index = RamIndex(num_slots, policy or FadingFrequency(num_slots))

    def serve(self, request: Request) -> int:
        """See `Cache`."""
        index, chain = self.index, request.chain
        num_hits = 0
        while num_hits < request.num_prompt and index.sealed(chain[num_hits]) is not None:
            num_hits += 1
        if num_hits:
            self._use(chain[num_hits - 1])
        held = [block for block in map(index.named, chain) if block is not None]
        for block in held:
            index.reference(block)
        for position in range(num_hits, len(chain)):
            if index.named(chain[position]) is None:
                parent = chain[position - 1] if position else _ROOT
                new = index.take(chain[position], parent, position, 1)
                if new is None:
                    break
                index.seal(new)
                held.append(new)
        for block in held:
            index.unreference(block)
        self._use(chain[-1])
        return num_hits

    @property
    def num_unreachable(self) -> int:
        """Blocks that are present without all before them."""
        return sum(not block.is_rooted for block in self.index)

    def _use(self, address: bytes) -> None:
        block: Block | None = self.index.sealed(address)
        if block is not None:
            self.index.use(block)


class LruReplay:
    """Leaves first, least recently used first, block by block; `heat` makes each doubling of a block's uses worth
    that many uses of recency, up to four doublings (what the tier had first)."""

    def __init__(self, num_slots: int, heat: float = 0.0) -> None:
        self._num_slots = num_slots
        self._heat = heat
        self._clock = 0
        self._uses: dict[bytes, tuple[int, int]] = {}  # address → last use, number of uses
        self._parents: dict[bytes, bytes] = {}
        self._num_children: dict[bytes, int] = {}
        self._leaves: list[tuple[float, bytes]] = []

    def serve(self, request: Request) -> int:
        """See `Cache`."""
        chain = request.chain
        num_hits = 0
        while num_hits < len(chain) and chain[num_hits] in self._uses:
            num_hits += 1
        self._use(chain[:num_hits])
        for position in range(num_hits, len(chain)):
            parent = chain[position - 1] if position else _ROOT
            if len(self._uses) >= self._num_slots:
                self._evict(parent)
            self._parents[chain[position]] = parent
            self._num_children[parent] = self._num_children.get(parent, 0) + 1
            self._use(chain[position : position + 1])
        self._use(chain)
        return min(num_hits, request.num_prompt)

    def _use(self, addresses: Iterable[bytes]) -> None:
        for address in addresses:
            self._clock += 1
            self._uses[address] = self._clock, self._uses.get(address, (0, 0))[1] + 1
            self._offer(address)

    def _rank(self, address: bytes) -> float:
        last_use, num_uses = self._uses[address]
        return last_use + self._heat * min(4.0, math.log2(num_uses))

    def _offer(self, address: bytes) -> None:
        if not self._num_children.get(address):
            heapq.heappush(self._leaves, (self._rank(address), address))

    def _evict(self, kept: bytes) -> None:
        while True:
            rank, leaf = heapq.heappop(self._leaves)
            if leaf in self._uses and leaf != kept and rank == self._rank(leaf) and not self._num_children.get(leaf):
                break
        del self._uses[leaf]
        parent = self._parents.pop(leaf)
        self._num_children[parent] -= 1
        if parent in self._uses:
            self._offer(parent)
