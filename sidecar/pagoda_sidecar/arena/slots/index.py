"""The RAM tier's index: address → block, children per block, and who goes when a slot is needed.

    take ──► pending ──seal──► sealed ──evict / drop──► gone
                │                         (a dropped one keeps its slot while it is referenced)
                └──abandon──► nameless, slot taken until the last reference goes

Invariants (`check_integrity`):
 - a slot is free or has exactly one block; free + taken = all;
 - only sealed leaves without references are evicted, so no block goes before its children;
 - `is_rooted` says whether the chain back to index 0 lies sealed in this tier.

Rules: pure; knows no bytes of payloads, no leases, no clock. Addresses are told apart by their first 16 bytes, the
half that headers carry as parent; a second address with the same half is refused.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count

from pagoda_sidecar.arena.slots.block import KEY_BYTES, Block
from pagoda_sidecar.arena.slots.policy import EvictionPolicy


class RamIndex:
    """See the head of this file. Not thread safe: it lives in the control loop."""

    def __init__(self, num_slots: int, policy: EvictionPolicy) -> None:
        self.num_slots = num_slots
        self.num_evictions = 0
        self.num_sealed = 0
        # Called with an address whose chain became, or is no longer, wholly present
        self.on_residency: Callable[[bytes], None] = lambda address: None
        # Called with a slot whose content is void from now on, before it can be taken again
        self.on_void: Callable[[int], None] = lambda slot: None
        # Most slots per tenant tag; a tag without a cap is bounded by the tier alone
        self.caps: Mapping[int, int] = {}
        self._policy = policy
        self._free = list(range(num_slots - 1, -1, -1))
        self._blocks: dict[bytes, Block] = {}
        self._children: dict[bytes, set[bytes]] = {}
        self._nameless: set[Block] = set()
        self._heap: list[tuple[float, int, int, Block]] = []
        self._order = count()
        self._parked: dict[bytes, Block] = {}  # least recently parked first

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks.values())

    @property
    def num_free(self) -> int:
        """Slots that hold nothing."""
        return len(self._free)

    def sealed(self, address: bytes) -> Block | None:
        """Return the visible block of `address`."""
        block = self.named(address)
        return block if block is not None and block.is_sealed else None

    def named(self, address: bytes) -> Block | None:
        """Return the block of `address`, visible or still being written."""
        block = self._blocks.get(address[:KEY_BYTES])
        return block if block is not None and block.address == address else None

    def parent_of(self, block: Block) -> Block | None:
        """Return the block before `block`, if it is in this tier."""
        return self._blocks.get(block.parent) if block.index else None

    def chain(self, block: Block) -> Iterator[Block]:
        """Yield `block` and then what lies before it in this tier, backwards."""
        current: Block | None = block
        while current is not None:
            yield current
            current = self.parent_of(current)

    def is_leaf(self, block: Block) -> bool:
        """Whether no block in this tier, sealed or pending, follows on `block`."""
        return block.key not in self._children

    def restore(self, sealed: Iterable[Block], held: Iterable[Block]) -> list[Block]:
        """Fill an empty index with what an earlier life left; return sealed blocks whose address came twice.

        `held` are nameless blocks whose slots somebody may still write, each with one reference.
        """
        assert len(self._free) == self.num_slots, "only an empty index is restored"
        self._nameless.update(held)
        twice = []
        for block in sorted(sealed, key=lambda block: block.index):  # parents first
            if block.key in self._blocks:  # the caller sorted the newer one to the front
                twice.append(block)
                continue
            self._name(block)
            self.seal(block)
        taken = {block.slot for block in (*self._blocks.values(), *self._nameless)}
        self._free = [slot for slot in reversed(range(self.num_slots)) if slot not in taken]
        return twice

    def take(self, address: bytes, parent: bytes, index: int, tokens: int, tenant_tag: int = 0) -> Block | None:
        """Name a new pending block with one reference, in a free slot or that of the lowest-ranked leaf.

        A tenant at its cap makes room among its own. Returns None when no slot can be had or the address is there
        already.
        """
        if address[:KEY_BYTES] in self._blocks or not self._make_room(tenant_tag):
            return None
        slot = self._free.pop()
        block = Block(address, parent[:KEY_BYTES], index, tokens, slot, tenant_tag=tenant_tag, references=1)
        self._name(block)
        return block

    def seal(self, block: Block) -> None:
        """Make a pending block visible."""
        assert block.is_named, "a block without a name cannot become visible"
        assert not block.is_sealed, "a block is sealed once"
        block.is_sealed = True
        self.num_sealed += 1
        self._policy.use(block)
        parent = self.parent_of(block)
        if block.index == 0 or (parent is not None and parent.is_rooted):
            self._set_rooted(block, True)
        self._offer(block)

    def use(self, block: Block) -> None:
        """Record a use of the sealed `block` and of its whole chain, which is used with it."""
        for link in reversed(list(self.chain(block))):
            self._unpark(link)
            self._policy.use(link)
            self._offer(link)

    def next_victims(self, limit: int) -> list[Block]:
        """Return the blocks that eviction would take next, each chain from its end. Changes nothing."""
        victims: list[Block] = []
        gone: set[bytes] = set()
        order = count()
        heap = [(rank, next(order), block) for rank, stamp, _, block in self._heap if stamp == block.heap_stamp]
        heapq.heapify(heap)
        while heap and len(victims) < limit:
            block = heapq.heappop(heap)[2]
            if block.references or not block.is_sealed or self._children.get(block.key, set()) - gone:
                continue
            victims.append(block)
            gone.add(block.key)
            parent = self.parent_of(block)
            if parent is not None:
                heapq.heappush(heap, (self._policy.rank(parent), next(order), parent))
        return victims

    def park(self, block: Block, limit: int) -> None:
        """Keep the chain of `block` before others until it is used again, at most `limit` blocks in all."""
        for link in self.chain(block):
            self._parked.pop(link.key, None)
            self._parked[link.key] = link
            link.is_parked = True
            self._offer(link)
        while len(self._parked) > limit:
            self._unpark(next(iter(self._parked.values())))

    def _unpark(self, block: Block) -> None:
        if self._parked.pop(block.key, None) is not None:
            block.is_parked = False
            self._offer(block)

    def reference(self, block: Block) -> None:
        """Keep the slot of `block` from being reused."""
        assert block.is_named or block.references, "a block that is gone has no slot to keep"
        block.references += 1

    def unreference(self, block: Block) -> None:
        """Give a reference back."""
        assert block.references > 0, "a reference was given back twice"
        block.references -= 1
        if block.references == 0 and not block.is_named:
            self._nameless.discard(block)
            self._release(block)
        else:
            self._offer(block)

    def drop(self, block: Block) -> None:
        """Take the block's name away at once (damage, an aborted or quarantined write); the slot follows."""
        if not block.is_named:
            return
        self._unname(block)
        if block.references:
            self._nameless.add(block)
        else:
            self._release(block)

    def _make_room(self, tenant_tag: int) -> bool:
        cap = self.caps.get(tenant_tag)
        if cap is not None:
            own = [block for block in (*self, *self._nameless) if block.tenant_tag == tenant_tag]
            for _ in range(len(own) + 1 - cap):
                leaves = [block for block in own if self._is_evictable(block)]
                if not leaves:
                    return False
                self._expel(min(leaves, key=self._policy.rank))
        return bool(self._free) or self._evict()

    def _expel(self, block: Block) -> None:
        self.num_evictions += 1
        self._unname(block)
        self._release(block)

    def _evict(self) -> bool:
        while self._heap:
            _, stamp, _, block = heapq.heappop(self._heap)
            if stamp == block.heap_stamp and self._is_evictable(block):
                self._expel(block)
                return True
        return False

    def _is_evictable(self, block: Block) -> bool:
        return block.is_named and block.is_sealed and not block.references and self.is_leaf(block)

    def _offer(self, block: Block) -> None:
        """Put an evictable block where `_evict` finds it; a block that is not will be offered when it becomes so."""
        if not self._is_evictable(block):
            return
        block.heap_stamp += 1
        heapq.heappush(self._heap, (self._policy.rank(block), block.heap_stamp, next(self._order), block))
        if len(self._heap) > 4 * self.num_slots + 64:
            self._heap = [entry for entry in self._heap if entry[1] == entry[3].heap_stamp]
            heapq.heapify(self._heap)

    def _name(self, block: Block) -> None:
        self._blocks[block.key] = block
        self._children.setdefault(block.parent, set()).add(block.key)

    def _unname(self, block: Block) -> None:
        block.is_named = False
        self.num_sealed -= block.is_sealed
        self._parked.pop(block.key, None)
        del self._blocks[block.key]
        siblings = self._children[block.parent]
        siblings.discard(block.key)
        if not siblings:
            del self._children[block.parent]
            parent = self.parent_of(block)
            if parent is not None:
                self._offer(parent)
        if block.is_rooted:
            self._set_rooted(block, False)

    def _release(self, block: Block) -> None:
        self.on_void(block.slot)
        self._free.append(block.slot)

    def _set_rooted(self, block: Block, is_rooted: bool) -> None:
        """Pass on to all that follow whether their chain is whole."""
        waiting = [block]
        while waiting:
            link = waiting.pop()
            if link.is_rooted == is_rooted or not link.is_sealed:
                continue
            link.is_rooted = is_rooted
            self.on_residency(link.address)
            waiting.extend(self._blocks[key] for key in self._children.get(link.key, ()))

    def check_integrity(self) -> None:
        """Assert the invariants at the head of this file."""
        taken = [block.slot for block in (*self._blocks.values(), *self._nameless)]
        assert sorted(taken + self._free) == list(range(self.num_slots)), "a slot is lost or taken twice"
        assert self.num_sealed == sum(block.is_sealed for block in self), "sealed blocks are miscounted"
        children: dict[bytes, set[bytes]] = {}
        for key, block in self._blocks.items():
            assert block.key == key, "a block lies under a foreign address"
            assert block.is_named, "a block that is found has a name"
            children.setdefault(block.parent, set()).add(key)
            parent = self.parent_of(block)
            is_whole = block.is_sealed and (block.index == 0 or (parent is not None and parent.is_rooted))
            assert block.is_rooted == is_whole, "a chain is not what it says"
            assert block.is_sealed or block.references, "a pending block has no owner"
        assert children == self._children, "children and parents disagree"
        assert all(block.references and not block.is_named for block in self._nameless)
        offered = {id(entry[3]) for entry in self._heap if entry[1] == entry[3].heap_stamp}
        assert all(id(block) in offered for block in self if self._is_evictable(block)), "a leaf cannot be found"
