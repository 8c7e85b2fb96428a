"""The RAM tier under any order of events, against a model that remembers who may touch which slot.

The model is the oracle for safety: whenever a slot is lent for writing, nobody that may still touch it may exist; and
every generation is new, over restarts too. After each step the tier's own invariants hold.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import xxhash
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagoda_protocol.records import HANDED_OVER
from pagoda_sidecar.arena.file import allocate, open_kept
from pagoda_sidecar.arena.layout import fixed_geometry
from pagoda_sidecar.arena.slots.grants import Holder, NewBlock, Run
from pagoda_sidecar.arena.slots.run import run_of
from pagoda_sidecar.arena.tier import LEASE_SECONDS, RamTier
from tests.sidecar.support import NAMESPACE, ROOT, chain

PAYLOAD = 64
FILE_BYTES = 20_480 + 4096 + 8 * 4096  # eight slots
# Three chains, two of which share their first two blocks
TRUNK = chain(6)
BRANCH = [*TRUNK[:2], *chain(4, seed=1, root=TRUNK[1])]
OTHER = chain(5, seed=2)
CHAINS = (TRUNK, BRANCH, OTHER)
assert fixed_geometry(FILE_BYTES, PAYLOAD).num_slots == 8


class TierMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="pagoda-test-", dir="/dev/shm")
        self.path = Path(self.folder.name) / "arena"
        self.now = 0.0
        self.num_names = 0
        self.is_engine_alive = True
        self.attachment = self.name().encode()
        # lease id → slots the engine may still touch (it forgets when it settles or dies)
        self.touching: dict[str, set[int]] = {}
        self.uncommitted: dict[str, list[tuple[int, int, bytes]]] = {}
        self.generations: set[int] = set()
        self.contents: dict[bytes, bytes] = {}
        arena = allocate(self.path, FILE_BYTES, lambda done: None, lambda: False)
        arena.fix_geometry(PAYLOAD)
        self.tier = self.opened(arena)
        self.tier.attached()

    def opened(self, arena: object) -> RamTier:
        return RamTier(arena, NAMESPACE, 0, lambda: self.now, lambda: not self.is_engine_alive)  # type: ignore[arg-type]

    def name(self) -> str:
        """Return a name never used before; counted, because a replay must draw the same."""
        self.num_names += 1
        return f"{self.num_names:016}"

    @property
    def holder(self) -> Holder:
        return Holder(self.attachment)

    def lent(self, lease_id: str, slot: int, generation: int) -> None:
        assert generation not in self.generations, "a generation returned"
        self.generations.add(generation)
        for other, slots in self.touching.items():
            assert slot not in slots, f"slot {slot} is lent while {other} may touch it"
        self.touching.setdefault(lease_id, set())

    @precondition(lambda self: self.is_engine_alive)
    @rule(which=st.integers(0, 2), length=st.integers(1, 6), tag=st.integers(1, 2))
    def reserve(self, which: int, length: int, tag: int) -> None:
        addresses = CHAINS[which][:length]
        parents = [ROOT, *addresses]
        lease_id = self.name()
        before = {block.address for block in self.tier.index}
        sealed = {block.address for block in self.tier.index if block.is_sealed}
        new = [NewBlock(address, parents[i], i, 4, tag) for i, address in enumerate(addresses)]
        others = {block.address for block in self.tier.index if block.tenant_tag != tag}
        is_full_share = self.tier.index.shares.is_over(tag, 1)
        reservation = self.tier.reserve(lease_id, self.holder, new)
        if is_full_share:  # it has made room among its own, from the first block to the last
            assert others <= {block.address for block in self.tier.index}, "another tenant paid"
        cap = self.tier.index.shares.caps.get(tag)
        assert cap is None or not reservation.slots or self.tier.index.shares.num_held[tag] <= cap
        assert len(reservation.slots) + reservation.num_present + reservation.num_refused == len(new)
        for position, block in reservation.slots:
            assert addresses[position] not in sealed
            self.lent(lease_id, block.slot, block.generation)
        self.touching[lease_id] = {block.slot for _, block in reservation.slots}
        self.uncommitted[lease_id] = [(b.slot, b.generation, b.address) for _, b in reservation.slots]
        taken = {position for position, _ in reservation.slots}
        cut = [i for i, a in enumerate(addresses) if i not in taken and self.tier.index.named(a) is None]
        assert not cut or all(i in cut for i in range(cut[0], len(addresses)) if addresses[i] not in before), "a hole"

    @precondition(lambda self: any(self.uncommitted.values()))
    @rule(data=st.data(), is_sound=st.booleans())
    def commit(self, data: st.DataObject, is_sound: bool) -> None:
        lease_id = data.draw(st.sampled_from([key for key, blocks in self.uncommitted.items() if blocks]))
        slot, generation, address = self.uncommitted[lease_id].pop(0)
        content = (address * 2)[:PAYLOAD]
        self.tier.arena.payload(slot)[:] = content  # the engine may write: we are still touching it
        digest = xxhash.xxh3_128_digest(content if is_sound else content[1:])
        block = self.tier.commit(lease_id, self.attachment, slot, generation, digest)
        if block is not None:
            self.touching[lease_id].discard(slot)
            assert self.tier.index.sealed(address) is block
            assert (self.tier.verify(block) is None) == is_sound
            if not is_sound:
                self.tier.drop(block)

    @precondition(lambda self: self.is_engine_alive)
    @rule(which=st.integers(0, 2), first=st.integers(0, 3), length=st.integers(1, 5), can_fetch=st.booleans())
    def grant(self, which: int, first: int, length: int, can_fetch: bool) -> None:
        addresses = CHAINS[which]
        stop = min(len(addresses), first + length)
        lease_id = self.name()
        grant = self.tier.grant(lease_id, self.holder, Run(addresses, ROOT, first, stop), can_fetch)
        assert len(grant.blocks) == grant.stop - first <= self.tier.max_grant
        for position, block in grant.fetches:
            self.lent(lease_id, block.slot, block.generation)
            if position % 2:
                self.tier.fail(block)
            else:
                content = (block.address * 2)[:PAYLOAD]
                self.tier.arena.payload(block.slot)[:] = content
                header = self.tier._header(block, xxhash.xxh3_128_digest(content))
                flags = HANDED_OVER if position == 2 else 0
                assert self.tier.land(block, replace(header, tenant_tag=2, flags=flags))
                assert self.tier.header(block).flags == 0, "it is for whoever loads it first"
                chain = list(self.tier.index.chain(block))
                assert not flags or run_of(chain[-1]).keeper is self.tier.index.parking
                assert block.tenant_tag == 2
        self.touching[lease_id] = {block.slot for _, block in grant.blocks}
        for _, block in grant.blocks:
            if block.is_sealed and block.is_named:
                self.tier.index.use(block)

    @rule(which=st.integers(0, 2), position=st.integers(0, 5))
    def park(self, which: int, position: int) -> None:
        address = CHAINS[which][position % len(CHAINS[which])]
        self.tier.park(address)
        block = self.tier.index.sealed(address)
        if block is not None:  # its front at least is parked, most recently and so before all others
            assert [run_of(link).keeper is self.tier.index.parking for link in self.tier.index.chain(block)][-1]

    @rule(which=st.integers(0, 2), position=st.integers(0, 5))
    def use(self, which: int, position: int) -> None:
        block = self.tier.index.sealed(CHAINS[which][position % len(CHAINS[which])])
        if block is not None:
            self.tier.index.use(block)
            assert not any(run_of(link).keeper is self.tier.index.parking for link in self.tier.index.chain(block))

    @rule(shares=st.dictionaries(st.integers(1, 2), st.sampled_from([0.1, 0.3, 0.6, 1.0])))
    def set_shares(self, shares: dict[int, float]) -> None:
        self.tier.set_shares(shares)

    @rule(limit=st.integers(0, 8))
    def look_at_victims(self, limit: int) -> None:
        victims = self.tier.index.next_victims(limit)
        assert len(victims) <= limit
        assert len(set(victims)) == len(victims)
        gone: set[bytes] = set()
        for block in victims:
            assert block.is_sealed
            assert not block.references
            behind = {other.key for other in self.tier.index if other.index and other.parent == block.key}
            assert behind <= gone, "a block before its children"
            gone.add(block.key)

    @precondition(lambda self: self.touching)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.touching)))
        self.tier.settle(lease_id)
        del self.touching[lease_id]
        self.uncommitted.pop(lease_id, None)

    @rule(seconds=st.sampled_from([1.0, LEASE_SECONDS / 2, LEASE_SECONDS]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def stream_breaks(self) -> None:
        self.tier.lapse(self.attachment)
        self.attaches_again()

    def attaches_again(self) -> None:
        """The engine attaches anew, once it copies nothing any more: nothing of before is held for it."""
        self.touching.clear()
        self.uncommitted.clear()
        self.attachment = self.name().encode()
        self.tier.attached()
        assert not self.tier.leases.lapsed

    @rule()
    def engine_dies(self) -> None:
        self.tier.lapse(self.attachment)
        self.is_engine_alive = False
        self.touching.clear()
        self.uncommitted.clear()

    @rule()
    def engine_is_started_anew(self) -> None:
        self.tier.lapse(self.attachment)
        self.touching.clear()
        self.uncommitted.clear()
        self.is_engine_alive, self.attachment = True, self.name().encode()
        self.tier.attached()

    @rule()
    def sidecar_is_killed_and_started(self) -> None:
        sealed = {block.address for block in self.tier.index if block.is_sealed}
        self.tier.arena.close()
        self.tier = self.opened(open_kept(self.path, FILE_BYTES))
        assert {block.address for block in self.tier.index if block.is_sealed} == sealed
        assert self.tier.num_damaged_headers == 0
        # Until it attaches, the engine may go on writing what it had reserved
        unwritten = {slot for slots in self.uncommitted.values() for slot, _, _ in slots}
        held = {block.slot for lease in self.tier.leases.lapsed for block in lease.blocks}
        assert unwritten <= held or not self.is_engine_alive
        if self.is_engine_alive:
            self.attaches_again()

    @invariant()
    def everything_agrees(self) -> None:
        if hasattr(self, "tier"):
            self.tier.check_integrity()
            assert self.tier.index.parking.num_blocks <= 4, "parked blocks hold more than their part"
            for block in self.tier.index:
                assert block.is_sealed or block.references

    @invariant()
    def sealed_blocks_hold_their_bytes(self) -> None:
        if hasattr(self, "tier"):
            for block in self.tier.index:
                if block.is_sealed:
                    assert self.tier.verify(block) is None

    def teardown(self) -> None:
        if not hasattr(self, "tier"):
            return
        for lease_id in list(self.touching):
            self.tier.settle(lease_id)
        self.tier.lapse(self.attachment)
        self.is_engine_alive = False
        self.tier.reserve("last", self.holder, [])
        assert len(self.tier.leases) == 0
        assert all(block.references == 0 for block in self.tier.index)
        assert self.tier.index.num_free + len(self.tier.index) == 8, "free + cached = all"
        self.tier.arena.close()
        self.folder.cleanup()


TestTier = TierMachine.TestCase
TestTier.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
