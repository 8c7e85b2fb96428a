"""The RAM tier's index: address → block, children per block, runs of blocks, and who goes when a slot is needed.

    take ──► pending ──seal──► sealed ──evict / drop──► gone
                │                         (a dropped one keeps its slot while it is referenced)
                └──abandon──► nameless, slot taken until the last reference goes

Evicted first: what no longer hangs on its chain's front; then all else by the policy's rank; then what grew lately;
last what is parked.

Invariants (`check_integrity`):
 - a slot is free or has exactly one block; free + taken = all; each is charged to one tenant;
 - only sealed leaves without references are evicted, so no block goes before its children;
 - `is_rooted` says whether the chain back to index 0 lies sealed in this tier;
 - what may be evicted can be found.

Rules: pure; knows no bytes of payloads, no leases, no clock. Addresses are told apart by their first 16 bytes, the
half that headers carry as parent; a second address with the same half is refused.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping

from pagoda_sidecar.arena.slots.block import KEY_BYTES, Block
from pagoda_sidecar.arena.slots.forest import Forest
from pagoda_sidecar.arena.slots.keep import Keep
from pagoda_sidecar.arena.slots.policy import EvictionPolicy
from pagoda_sidecar.arena.slots.queue import Rank, RunQueue
from pagoda_sidecar.arena.slots.run import ChainRun, run_of
from pagoda_sidecar.arena.slots.shares import TenantShares

_LOOSE, _ORDINARY, _WINDOW, _PARKED = range(4)
# Part of the tier that runs which grew lately are kept in, before all that is not parked. What it holds the proven lack
_WINDOW_PART = 64


class RamIndex:
    """See the head of this file. Not thread safe: it lives in the control loop."""

    def __init__(self, num_slots: int, policy: EvictionPolicy) -> None:
        self.num_slots = num_slots
        self.num_evictions = 0
        self.num_share_evictions = 0  # of these, because a tenant was at its cap
        self.num_sealed = 0
        # Called with an address whose chain became, or is no longer, wholly present
        self.on_residency: Callable[[bytes], None] = lambda address: None
        # Called with a sealed block that came (True) or went (False)
        self.on_presence: Callable[[Block, bool], None] = lambda block, is_there: None
        # Called with a block that is about to be evicted
        self.on_eviction: Callable[[Block], None] = lambda block: None
        # Called with a slot whose content is void from now on, before it can be taken again
        self.on_void: Callable[[int], None] = lambda slot: None
        self.parking = Keep(_PARKED)
        self.window = Keep(_WINDOW)
        self.shares = TenantShares(self._rank, self._is_evictable)
        self._policy = policy
        self._epoch = policy.epoch
        self._free = list(range(num_slots - 1, -1, -1))
        self._forest = Forest(policy)
        self._nameless: set[Block] = set()
        self._forest.on_split = self._offer
        self._queue = RunQueue(self._rank, self._is_evictable)

    def __len__(self) -> int:
        return len(self._forest)

    def __iter__(self) -> Iterator[Block]:
        return iter(self._forest)

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
        block = self._forest.find(address[:KEY_BYTES])
        return block if block is not None and block.address == address else None

    def parent_of(self, block: Block) -> Block | None:
        """Return the block before `block`, if it is in this tier."""
        return self._forest.parent_of(block)

    def chain(self, block: Block) -> Iterator[Block]:
        """Yield `block` and then what lies before it in this tier, backwards."""
        return self._forest.chain(block)

    def is_leaf(self, block: Block) -> bool:
        """Whether no block in this tier, sealed or pending, follows on `block`."""
        return self._forest.is_leaf(block)

    def worth(self, block: Block) -> float:
        """Return a number that is larger for what goes later."""
        return self._policy.rank(run_of(block))

    def restore(self, sealed: Iterable[Block], held: Iterable[Block]) -> list[Block]:
        """Fill an empty index with what an earlier life left; return sealed blocks that have no place in it.

        These are blocks whose address came twice, or whose place is not where their neighbours say.

        `held` are nameless blocks whose slots somebody may still write, each with one reference.
        """
        assert len(self._free) == self.num_slots, "only an empty index is restored"
        twice = []
        for block in sorted(sealed, key=lambda block: block.index):  # parents first
            if not self._forest.fits(block.key, block.parent, block.index):  # the newer one was sorted to the front
                twice.append(block)
                continue
            parent = self._forest.parent_of(block)
            self._forest.add(block)
            block.is_sealed = True
            block.is_rooted = block.index == 0 or (parent is not None and parent.is_rooted)
            self.shares.charge(block.tenant_tag, 1)
        self.num_sealed = len(self)
        for block in held:
            self._nameless.add(block)
            self.shares.charge(block.tenant_tag, 1)
        taken = {block.slot for block in (*self, *self._nameless)}
        self._free = [slot for slot in reversed(range(self.num_slots)) if slot not in taken]
        for run in {run_of(block): None for block in self}:
            self._offer(run)
        return twice

    def take(self, address: bytes, parent: bytes, index: int, tokens: int, tenant_tag: int = 0) -> Block | None:
        """Name a new pending block with one reference, in a free slot or that of the leaf that goes first.

        A tenant at its cap makes room among its own. Returns None when no slot can be had, or the address is there
        already or does not fit its neighbours.
        """
        if not self._forest.fits(address[:KEY_BYTES], parent[:KEY_BYTES], index):
            return None
        if not self._make_room(tenant_tag, parent, index):
            return None
        slot = self._free.pop()
        block = Block(address, parent[:KEY_BYTES], index, tokens, slot, tenant_tag=tenant_tag, references=1)
        self.shares.charge(tenant_tag, 1)
        self._forest.add(block)
        before = self.parent_of(block)
        if before is not None and run_of(before).keeper is self.parking:
            self._unpark(before)
        self.window.add(run_of(block))
        self._trim(self.window, self.num_slots // _WINDOW_PART, 1)
        return block

    def retag(self, block: Block, tenant_tag: int) -> None:
        """Charge `block` to the tenant whose it has turned out to be, who makes room among its own if need be."""
        if block.tenant_tag == tenant_tag:
            return
        self.shares.charge(block.tenant_tag, -1)
        block.tenant_tag = tenant_tag
        self.shares.charge(tenant_tag, 1)
        self._hold_to_share(tenant_tag, 0)

    def seal(self, block: Block) -> None:
        """Make a pending block visible."""
        assert block.is_named, "a block without a name cannot become visible"
        assert not block.is_sealed, "a block is sealed once"
        block.is_sealed = True
        self.num_sealed += 1
        self.on_presence(block, True)
        parent = self.parent_of(block)
        if block.index == 0 or (parent is not None and parent.is_rooted):
            self._set_rooted(block, True)
        self._offer(run_of(block))

    def use(self, block: Block) -> None:
        """Record a use of the sealed `block` and of its whole chain, which is used with it."""
        block.num_uses += 1
        self._unpark(block)
        for run in self._forest.runs(block):
            self._policy.use(run)

    def park(self, block: Block, max_blocks: int) -> None:
        """Keep the chain of `block` before others until it is used again, at most `max_blocks` in all."""
        for run in self._forest.runs(block):
            self.parking.add(run)
        while self.parking.num_blocks > max_blocks:
            run = self.parking.first
            excess = self.parking.num_blocks - max_blocks
            if run.num_blocks > excess:  # cut it: its front stays parked
                run = self._forest.split(self._forest.before(run.tail, excess))
            self.parking.remove(run)
            self._push(run)

    def set_caps(self, caps: Mapping[int, int]) -> None:
        """Cap what these tenant tags hold, in slots; what is too much goes with their next blocks."""
        self.shares.set_caps(caps, {run_of(block) for block in self})

    def next_victims(self, limit: int) -> list[Block]:
        """Return the blocks that eviction would take next, each chain from its end. Changes nothing."""
        victims: list[Block] = []
        gone: set[bytes] = set()
        popped: list[ChainRun] = []
        uncovered: list[tuple[Rank, int, Block]] = []  # ends of runs that would be leaves by then
        while len(victims) < limit:
            run = self._queue.first()
            if uncovered and (run is None or uncovered[0][0] <= self._rank(run)):
                block = heapq.heappop(uncovered)[2]
            elif run is not None:
                self._queue.discard(run)
                popped.append(run)
                block = run.tail
            else:
                break
            parent = self._follow_run(block, victims, gone, limit)
            if parent is not None:
                heapq.heappush(uncovered, (self._rank(run_of(parent)), len(victims), parent))
        for run in popped:
            self._queue.push(run)
        return victims

    def warm(self, block: Block, weight: float) -> None:
        """Let the chain of `block` weigh at least `weight` uses, as is known from an earlier life."""
        for run in self._forest.runs(block):
            self._policy.warm(run, weight)

    def reference(self, block: Block) -> None:
        """Keep the slot of `block` from being reused."""
        assert block.is_named or block.references, "a block that is gone has no slot to keep"
        block.references += 1

    def unreference(self, block: Block) -> None:
        """Give a reference back."""
        assert block.references > 0, "a reference was given back twice"
        block.references -= 1
        if block.run is not None:
            self._offer(block.run)
        elif block.references == 0:
            self._nameless.discard(block)
            self._release(block)

    def drop(self, block: Block) -> None:
        """Take the block's name away at once (damage, an aborted or quarantined write); the slot follows."""
        if not block.is_named:
            return
        self._unname(block)
        if block.references:
            self._nameless.add(block)
        else:
            self._release(block)

    def _unpark(self, block: Block) -> None:
        """The chain of `block` is used again, or goes on: it is an ordinary one."""
        for run in self._forest.runs(block):
            if self.parking.remove(run):
                self._push(run)

    def _trim(self, keep: Keep, max_blocks: int, min_runs: int) -> None:
        while keep.num_blocks > max_blocks and len(keep) > min_runs:
            run = keep.first
            keep.remove(run)
            self._push(run)

    def _make_room(self, tenant_tag: int, parent: bytes, index: int) -> bool:
        kept = self._forest.find(parent[:KEY_BYTES]) if index else None
        if kept is not None:  # room for a block must not be made by what it follows on
            kept.references += 1
        has_room = self._hold_to_share(tenant_tag, 1) and (bool(self._free) or self._evict())
        if kept is not None:
            self.unreference(kept)
        return has_room

    def _hold_to_share(self, tenant_tag: int, num_more: int) -> bool:
        while self.shares.is_over(tenant_tag, num_more):
            run = self.shares.first(tenant_tag)
            if run is None:
                return False
            self.num_share_evictions += 1
            self._expel(run.tail)
        return True

    def _evict(self) -> bool:
        if self._epoch != self._policy.epoch:
            self._epoch = self._policy.epoch
            self._queue.ranks_fell()
            self.shares.ranks_fell()
        run = self._queue.first()
        if run is not None:
            self._expel(run.tail)
        return run is not None

    def _expel(self, block: Block) -> None:
        self.num_evictions += 1
        self.on_eviction(block)
        self._unname(block)
        self._release(block)

    def _follow_run(self, block: Block, victims: list[Block], gone: set[bytes], limit: int) -> Block | None:
        """Add `block` and what would follow it from its run; return the block before the run if it is next in line."""
        run, link = block.run, block
        while len(victims) < limit and link.is_sealed and not link.references:
            victims.append(link)
            gone.add(link.key)
            parent = self.parent_of(link)
            if parent is None or any(child.key not in gone for child in self._forest.children_of(parent)):
                return None
            if parent.run is not run:
                return parent
            link = parent
        return None

    def _is_evictable(self, run: ChainRun) -> bool:
        block = run.tail
        return block.is_named and block.is_sealed and not block.references and self.is_leaf(block)

    def _rank(self, run: ChainRun) -> Rank:
        if run.keeper is not None:
            return run.keeper.level, self._policy.rank(run)
        return _ORDINARY if run.tail.is_rooted else _LOOSE, self._policy.rank(run)

    def _offer(self, run: ChainRun) -> None:
        """Put an evictable run where it is found; one that is not will be offered when it becomes so."""
        if not self._is_evictable(run):
            return
        if run not in self._queue:
            self._queue.push(run)
        self.shares.offer(run)

    def _push(self, run: ChainRun) -> None:
        """The same for a run whose rank may have fallen."""
        self._queue.discard(run)
        self.shares.discard(run)
        self._offer(run)

    def _unname(self, block: Block) -> None:
        if block is not run_of(block).tail:
            self._forest.split(block)
        block.is_named = False
        self.num_sealed -= block.is_sealed
        parent = self._forest.remove(block)
        if parent is not None:
            self._offer(run_of(parent))
        if block.is_rooted:
            self._set_rooted(block, False)
        if block.is_sealed:
            self.on_presence(block, False)

    def _release(self, block: Block) -> None:
        self.on_void(block.slot)
        self.shares.charge(block.tenant_tag, -1)
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
            if link.run is not None and link is link.run.tail:
                self._push(link.run)
            waiting.extend(self._forest.children_of(link))

    def check_integrity(self) -> None:
        """Assert the invariants at the head of this file."""
        blocks = (*self, *self._nameless)
        assert sorted([*(block.slot for block in blocks), *self._free]) == list(range(self.num_slots)), "a slot is lost"
        assert self.num_sealed == sum(block.is_sealed for block in self), "sealed blocks are miscounted"
        for block in self:
            parent = self.parent_of(block)
            is_whole = block.is_sealed and (block.index == 0 or (parent is not None and parent.is_rooted))
            assert block.is_named, "a block that is found has a name"
            assert block.is_rooted == is_whole, "a chain is not what it says"
            assert block.is_sealed or block.references, "a pending block has no owner"
            run = run_of(block)
            assert not self._is_evictable(run) or run in self._queue, "a leaf cannot be found"
        assert all(block.references and not block.is_named for block in self._nameless)
        self._forest.check_integrity()
        for keep in (self.window, self.parking):
            keep.check_integrity({run_of(block) for block in self})
        self.shares.check_integrity(blocks)
