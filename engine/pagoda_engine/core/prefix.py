"""The prefix table: which full blocks the device holds, as a forest of chains.

Rules:
- A block gets in when every token of it was written by a completed step or a verified load, and only after its parent.
- An address alone proves nothing: a hit also compares the tokens, the parent and the root, so that by induction the
  whole chain is compared, whatever the hash does.
- Only unheld blocks are evicted, leaves first, least recently used first. So a present block is always reachable.
- A block counts as held while any block below it is held: `num_evictable` is exactly what eviction can give.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from pagoda_engine.core.blocks import Pages


@dataclass(eq=False, slots=True)
class Block:
    """A full block on the device. Valid while it is held by somebody or in the table."""

    address: bytes
    root: bytes  # of its scope's part of the chain: differs from the parent's where a public prefix ends
    parent: "Block | None"
    index: int  # in its chain
    page: int
    tokens: tuple[int, ...]
    num_children: int = 0  # in the table
    num_held_children: int = 0
    last_use: int = 0
    stored_epoch: int = 0  # the attach epoch in which it is known to lie in RAM; 0 is none (storing.py)
    is_storing: bool = False
    store_after: float = 0.0  # not offered again before this time
    tenant_tag: int = 0


class PrefixTable:
    """Address → block, with eviction. The only owner of what happens to a page that nobody holds."""

    def __init__(self, pages: Pages) -> None:
        self.on_added: Callable[[bytes], None] = lambda address: None
        self.on_removed: Callable[[bytes], None] = lambda address: None
        self.on_leaf: Callable[[Block], None] = lambda block: None  # held by nobody, without children, since now
        self._pages = pages
        self._blocks: dict[bytes, Block] = {}
        self._by_page: dict[int, Block] = {}
        self._leaves: list[tuple[int, int, Block]] = []  # heap of (last use, tie, block), stale entries are skipped
        self._ties = count()
        self._uses = count(1)
        self._num_evictable = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks.values())

    def __contains__(self, block: Block) -> bool:
        return self._blocks.get(block.address) is block

    @property
    def num_available(self) -> int:
        """Pages that `take` can give."""
        return self._pages.num_free + self._num_evictable

    def find(self, address: bytes, root: bytes, parent: Block | None, tokens: Sequence[int]) -> Block | None:
        """Return the block with this address if it really holds `tokens` after `parent`, else None."""
        block = self._blocks.get(address)
        if block is None or block.parent is not parent or block.root != root or block.tokens != tuple(tokens):
            return None
        return block

    def is_present(self, address: bytes) -> bool:
        """Whether a block with this address is there: a guess, `find` is the proof."""
        return address in self._blocks

    def is_held(self, address: bytes) -> bool:
        """Whether a block with this address is there and not evictable."""
        block = self._blocks.get(address)
        return block is not None and self._is_held(block)

    def publish(
        self, address: bytes, root: bytes, parent: Block | None, tokens: tuple[int, ...], page: int
    ) -> Block | None:
        """Make a held, completely written page shareable and return its block.

        If the same block is there already with another page, that one is returned and `page` is left to its holders.
        None if the address is taken by other tokens, or the parent is gone: then it cannot be shared.
        """
        if address in self._blocks:
            return self.find(address, root, parent, tokens)
        if parent is not None and parent not in self:
            return None
        assert self._pages.holders(page) > 0
        index = 0 if parent is None else parent.index + 1
        block = Block(address, root, parent, index, page, tokens, last_use=next(self._uses))
        self._blocks[address] = block
        self._by_page[page] = block
        if parent is not None:
            parent.num_children += 1
            self._add_held_child(parent)
        self.on_added(address)
        return block

    def hold(self, page: int) -> None:
        """Add a holder to a page in use."""
        if self._pages.hold(page) == 1 and (block := self._by_page.get(page)) is not None and not _has_held(block):
            self._became_held(block)

    def release(self, page: int, is_use: bool = True) -> None:
        """Remove a holder; the page becomes cached or free when it was the last one. A copy is no use of a block."""
        block = self._by_page.get(page)
        if block is not None and is_use:
            block.last_use = next(self._uses)
        if self._pages.release(page):
            return
        if block is None:
            self._pages.give_back(page)
        elif not _has_held(block):
            self._became_unheld(block)

    def take(self, num: int) -> list[int] | None:
        """Return `num` pages with one holder each, evicting what must go; None (and no change) if there are fewer."""
        if num > self.num_available:
            return None
        while self._pages.num_free < num:
            self._evict_one()
        return [self._pages.take() for _ in range(num)]

    def is_idle_leaf(self, block: Block) -> bool:
        """Whether the block is in the table, held by nobody and without children."""
        return block in self and self._is_evictable_leaf(block)

    def drop(self, block: Block) -> bool:
        """Evict this block if it is an idle leaf; return whether it was."""
        if not self.is_idle_leaf(block):
            return False
        self._remove(block)
        return True

    def _evict_one(self) -> None:
        while True:
            last_use, _, block = heapq.heappop(self._leaves)
            if block.last_use == last_use and self.is_idle_leaf(block):
                break
        self._remove(block)

    def _remove(self, block: Block) -> None:
        del self._blocks[block.address]
        del self._by_page[block.page]
        self._num_evictable -= 1
        if (parent := block.parent) is not None:
            parent.num_children -= 1
            self._offer(parent)
        self._pages.give_back(block.page)
        self.on_removed(block.address)

    def _is_held(self, block: Block) -> bool:
        return self._pages.holders(block.page) > 0 or _has_held(block)

    def _is_evictable_leaf(self, block: Block) -> bool:
        return block.num_children == 0 and not self._is_held(block)

    def _became_held(self, block: Block) -> None:
        self._num_evictable -= 1
        if block.parent is not None:
            self._add_held_child(block.parent)

    def _add_held_child(self, block: Block) -> None:
        was_held = self._is_held(block)
        block.num_held_children += 1
        if not was_held:
            self._became_held(block)

    def _became_unheld(self, block: Block) -> None:
        """Walk up as long as a block loses its last reason to stay."""
        current: Block | None = block
        while current is not None:
            self._num_evictable += 1
            self._offer(current)
            current = current.parent
            if current is not None:
                current.num_held_children -= 1
                if self._is_held(current):
                    return

    def _offer(self, block: Block) -> None:
        if not self._is_evictable_leaf(block):
            return
        if len(self._leaves) > 2 * len(self._blocks) + 64:  # mostly stale entries
            leaves = (other for other in self._blocks.values() if self._is_evictable_leaf(other))
            self._leaves = [(other.last_use, next(self._ties), other) for other in leaves if other is not block]
            heapq.heapify(self._leaves)
        heapq.heappush(self._leaves, (block.last_use, next(self._ties), block))
        self.on_leaf(block)

    def check_integrity(self) -> None:
        """Assert that links, counts and pages agree."""
        children: dict[int, list[Block]] = {}
        for address, block in self._blocks.items():
            assert block.address == address
            assert self._by_page[block.page] is block
            if block.parent is not None:
                assert block.parent in self, "a block without its parent is unreachable"
                children.setdefault(id(block.parent), []).append(block)
        assert len(self._by_page) == len(self._blocks)
        for block in self._blocks.values():
            mine = children.get(id(block), [])
            assert block.num_children == len(mine)
            assert block.num_held_children == sum(self._is_held(child) for child in mine)
        assert self._num_evictable == sum(not self._is_held(block) for block in self._blocks.values())
        waiting = {(last_use, id(block)) for last_use, _, block in self._leaves}
        for block in self._blocks.values():
            assert not self._is_evictable_leaf(block) or (block.last_use, id(block)) in waiting
        assert self._pages.num_cached == sum(self._pages.holders(page) == 0 for page in self._by_page)
        self._pages.check_integrity()


def _has_held(block: Block) -> bool:
    return block.num_held_children > 0
