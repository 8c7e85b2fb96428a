"""The RAM tier: index, leases and header table kept in step, for the blocks of one namespace.

Every method but `verify` belongs to the control loop, is quick and does no I/O; `verify` hashes a payload and belongs
in a thread, between `reference` and `unreference`.

Write protocol of a slot: take (index) → invalidate (header table, new generation) → payload → seal. Generations are
arena-wide and never return: high half the boot count, low half a counter.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import xxhash

from pagoda_protocol.records import HANDED_OVER, RecordError, RecordHeader, pack_header, unpack_header
from pagoda_sidecar.arena.file import ArenaFile
from pagoda_sidecar.arena.layout import lease_key
from pagoda_sidecar.arena.recovery import recover
from pagoda_sidecar.arena.slots.block import KEY_BYTES, Block
from pagoda_sidecar.arena.slots.grants import Grant, Holder, NewBlock, Reservation, Run
from pagoda_sidecar.arena.slots.index import RamIndex
from pagoda_sidecar.arena.slots.leases import Lease, Leases
from pagoda_sidecar.arena.slots.policy import FadingFrequency

LEASE_SECONDS = 30.0
# The most of the tier that parked chains may hold before others
PARKED_SHARE = 0.5
MAX_EARLY_PARKS = 4096


class RamTier:
    """See the head of this file."""

    def __init__(
        self,
        arena: ArenaFile,
        namespace: bytes,
        codec: int,
        clock: Callable[[], float],
        is_lock_free: Callable[[], bool],
    ) -> None:
        self.arena = arena
        self.namespace = namespace[:KEY_BYTES]
        self.index = RamIndex(arena.geometry.num_slots, FadingFrequency(arena.geometry.num_slots))
        self.leases = Leases()
        self._codec = codec
        self._clock = clock
        self._is_lock_free = is_lock_free
        self._headers = arena.headers
        # Told of an address whose chain was parked because its session is idle
        self.on_parked: Callable[[bytes], None] = lambda address: None
        self._early_parks: dict[bytes, None] = {}  # addresses that are not here (yet), oldest first
        self._next_generation = (arena.boot_count << 32) + 1
        self.num_damaged_headers = recover(arena, self.namespace, is_lock_free(), self.index, self.leases)
        self.index.on_void = self._headers.free

    def reserve(self, lease_id: str, holder: Holder, blocks: Sequence[NewBlock]) -> Reservation:
        """Lend slots for the blocks not present, at most half the arena. A chain is cut at its first refused block."""
        reservation = Reservation()
        lease = self._lease(lease_id, holder, is_write=True)
        refused: set[bytes] = set()
        self._reclaim()
        held = self._held_all([*(new.parent for new in blocks), *(new.address for new in blocks)])
        for position, new in enumerate(blocks):
            if self.index.named(new.address) is not None:
                reservation.num_present += 1
                continue
            is_cut = new.parent in refused or len(lease.blocks) >= self.max_grant
            block = None if is_cut else self._take(new, lease.key)
            if block is None:
                refused.add(new.address)
                reservation.num_refused += 1
                continue
            lease.blocks.append(block)
            reservation.slots.append((position, block))
        for block in held:
            self.index.unreference(block)
        if lease.blocks:
            self.leases.open(lease)
        return reservation

    def commit(self, lease_id: str, attachment: bytes, slot: int, generation: int, xxh3: bytes) -> Block | None:
        """Seal one written slot and return its block; None when the lease does not grant that (any more)."""
        lease = self.leases.active(lease_id, attachment, self._clock())
        if lease is None or not lease.is_write:
            return None
        block = next((b for b in lease.blocks if b.slot == slot and b.generation == generation), None)
        if block is None or not block.is_named:
            return None
        lease.blocks.remove(block)
        self._seal(block, self._header(block, xxh3))
        if not lease.blocks:
            self.leases.settle(lease_id)
        if block.address in self._early_parks:
            self.park(block.address)
        return block

    def has_ended(self, lease_id: str, attachment: bytes) -> bool:
        """Whether the lease was granted, or settled unseen, and grants nothing to `attachment` any more."""
        return self.leases.is_known(lease_id) and self.leases.active(lease_id, attachment, self._clock()) is None

    @property
    def max_grant(self) -> int:
        """Slots one lease may hold."""
        return max(1, self.index.num_slots // 2)

    def grant(self, lease_id: str, holder: Holder, run: Run, can_fetch: bool) -> Grant:
        """Lease a run: all slots now, at most half the arena, cut where no slot can be had.

        Blocks not present get a pending one that the caller must `land` or `fail`; without `can_fetch` they cut the
        grant.
        """
        chain, first = run.chain, run.first
        grant = Grant(first)
        lease = self._lease(lease_id, holder, is_write=False)
        self._reclaim()
        held = self._held_all(chain[max(0, first - 1) : run.stop])
        for position in range(first, min(run.stop, first + self.max_grant)):
            block = self.index.named(chain[position])
            if block is None:
                if not can_fetch:
                    break
                parent = chain[position - 1] if position else run.root
                block = self._take(NewBlock(chain[position], parent, position, 0, self._likely_tag(parent)), lease.key)
                if block is None:
                    break
                grant.fetches.append((position, block))  # its first reference belongs to the fetch
            lease.blocks.append(self._held(block))
            grant.blocks.append((position, block))
            grant.stop = position + 1
        for block in held:
            self.index.unreference(block)
        if lease.blocks:
            self.leases.open(lease)
        return grant

    def land(self, block: Block, header: RecordHeader) -> bool:
        """Seal a fetched block under the header it came with; False when that is not the block asked for.

        What another pod handed over is parked with its chain: its session comes from there, and has no uses here yet.
        """
        fits = (
            header.address == block.address
            and header.parent == block.parent
            and header.index == block.index
            and header.namespace == self.namespace
            and header.payload_bytes == self.arena.geometry.payload_bytes
            and header.codec == self._codec
        )
        if not fits or not block.is_named:
            self.fail(block)
            return False
        block.tokens = header.tokens
        self.index.retag(block, header.tenant_tag)
        self._seal(block, replace(header, flags=header.flags & ~HANDED_OVER))
        if header.flags & HANDED_OVER:
            self._park(block)
        return True

    def fail(self, block: Block) -> None:
        """Give up a fetched block that did not come; its slot is free when its last lease is settled."""
        self.index.drop(block)
        self.index.unreference(block)

    def park(self, address: bytes) -> None:
        """Keep the chain that ends at `address` before others until it is used again.

        An address that is not here is remembered until its block is committed: an engine reports beside its stores.
        """
        self._early_parks.pop(address, None)
        block = self.index.sealed(address)
        if block is not None:
            self._park(block)
            self.on_parked(address)
            return
        self._early_parks[address] = None
        if len(self._early_parks) > MAX_EARLY_PARKS:
            del self._early_parks[next(iter(self._early_parks))]

    def use(self, address: bytes) -> None:
        """Record a use of the chain that ends at `address`, which ends its parking; unknown addresses are fine."""
        self._early_parks.pop(address, None)
        block = self.index.sealed(address)
        if block is not None:
            self.index.use(block)

    def warm(self, heats: Iterable[tuple[bytes, float]]) -> None:
        """Take up, after a restart, how often the chains that end at these addresses were used lately."""
        for address, heat in heats:
            block = self.index.sealed(address)
            if block is not None:
                self.index.warm(block, heat)

    def set_shares(self, shares: Mapping[int, float]) -> None:
        """Cap what the blocks of each tenant tag may hold, as a share of all slots; tags not named have no cap."""
        self.index.set_caps({tag: max(1, int(share * self.index.num_slots)) for tag, share in shares.items()})

    def settle(self, lease_id: str) -> None:
        """The engine no longer touches the lease's slots, whatever became of it. Unknown ids are fine."""
        lease = self.leases.settle(lease_id)
        if lease is not None:
            self._give_back(lease)

    def lapse(self, attachment: bytes) -> None:
        """The attachment's stream ended: quarantine what it still held."""
        self._quarantine(self.leases.lapse_attachment(attachment))

    def attached(self) -> None:
        """An engine that holds the lock attached: whoever held it before is gone, and itself it copies nothing now."""
        for lease in self.leases.close_lapsed():
            self._give_back(lease)

    def drop(self, block: Block) -> None:
        """Forget a damaged block; readers of it notice by its generation."""
        if block.is_named and block.is_sealed:
            self._headers.free(block.slot)
        self.index.drop(block)

    def verify(self, block: Block) -> str | None:
        """Check the block's record against its payload; return what is wrong as a metric label. Blocks, thread-safe."""
        if not self._headers.is_sealed(block.slot, block.generation):
            return "state"
        try:
            header = unpack_header(self._headers.record(block.slot))
        except RecordError as error:
            return error.reason
        if header.address != block.address or header.namespace != self.namespace:
            return "address"
        payload = self.arena.payload(block.slot)
        if header.payload_bytes != len(payload):
            return "length"
        return None if xxhash.xxh3_128_digest(payload) == header.xxh3 else "checksum"

    def header(self, block: Block) -> RecordHeader:
        """Return the record header of a sealed, verified block.

        Raises:
            RecordError: it was damaged since.
        """
        return unpack_header(self._headers.record(block.slot))

    def by_heat(self) -> Iterable[Block]:
        """Yield all visible blocks, hottest session first, each chain from its front."""
        seen: set[bytes] = set()
        leaves = [block for block in self.index if block.is_sealed and self.index.is_leaf(block)]
        for leaf in sorted(leaves, key=self.index.worth, reverse=True):
            for block in reversed([link for link in self.index.chain(leaf) if link.key not in seen]):
                seen.add(block.key)
                if block.is_sealed:
                    yield block

    def check_integrity(self) -> None:
        """Assert that index, leases and header table agree."""
        self.index.check_integrity()
        for block in self.index:
            if block.is_sealed:
                assert self._headers.is_sealed(block.slot, block.generation)
            else:
                assert self._headers.is_writable(block.slot, block.generation)

    def _take(self, new: NewBlock, lease: int) -> Block | None:
        block = self.index.take(new.address, new.parent, new.index, new.tokens, new.tenant_tag)
        if block is None:
            return None
        block.generation = self._next_generation
        self._next_generation += 1
        assert self._next_generation >> 32 == self.arena.boot_count, "generations of one boot are used up"
        self._headers.invalidate(block.slot, block.generation, lease)
        return block

    def _park(self, block: Block) -> None:
        self.index.park(block, int(self.index.num_slots * PARKED_SHARE))

    def _likely_tag(self, parent: bytes) -> int:
        """Return whose a block that is not read yet will be; its record's header has the last word."""
        block = self.index.named(parent)
        return 0 if block is None else block.tenant_tag

    def _seal(self, block: Block, header: RecordHeader) -> None:
        self._headers.seal(block.slot, pack_header(header))
        self.index.seal(block)
        self.index.unreference(block)

    def _header(self, block: Block, xxh3: bytes) -> RecordHeader:
        return RecordHeader(
            self.namespace, block.address, block.parent, block.index, block.tokens,
            self.arena.geometry.payload_bytes, block.tenant_tag, xxh3, self._codec,
        )  # fmt: skip

    def _lease(self, lease_id: str, holder: Holder, is_write: bool) -> Lease:
        expires_at = self._clock() + LEASE_SECONDS
        return Lease(lease_key(lease_id), holder.attachment, is_write, expires_at)

    def _held(self, block: Block) -> Block:
        self.index.reference(block)
        return block

    def _held_all(self, addresses: Sequence[bytes]) -> list[Block]:
        """Reference what is there of a request, so that none of it is evicted for the rest of it."""
        found = (self.index.named(address) for address in addresses)
        return [self._held(block) for block in found if block is not None]

    def _reclaim(self) -> None:
        """Look at expiry and quarantine, as every allocation does."""
        self._quarantine(self.leases.lapse_expired(self._clock()))
        if self.leases.lapsed and self._is_lock_free():
            for lease in self.leases.close_lapsed():
                self._give_back(lease)

    def _quarantine(self, leases: Iterable[Lease]) -> None:
        """Their unsealed blocks lose their names, so that the same addresses can be stored anew elsewhere."""
        for lease in leases:
            if lease.is_write:
                for block in lease.blocks:
                    self.index.drop(block)

    def _give_back(self, lease: Lease) -> None:
        for block in lease.blocks:
            if lease.is_write:
                self.index.drop(block)
            self.index.unreference(block)
