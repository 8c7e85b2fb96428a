"""Whose blocks go when a tenant is at its share, and what parked chains may keep."""

from pagoda_sidecar.arena.slots.block import Block
from pagoda_sidecar.arena.slots.index import RamIndex
from pagoda_sidecar.arena.slots.policy import FadingFrequency
from tests.sidecar.support import ROOT, chain

ACME, OTHER, SHARED = 1, 2, 3


def made(num_slots: int) -> RamIndex:
    return RamIndex(num_slots, FadingFrequency(num_slots))


def put(index: RamIndex, addresses: list[bytes], tag: int = 0) -> int:
    """Store the chain front first; return how many blocks of it had no slot."""
    parents = [ROOT, *addresses]
    for position, address in enumerate(addresses):
        if index.named(address) is not None:
            continue
        block = index.take(address, parents[position], position, 4, tag)
        if block is None:
            return len(addresses) - position
        index.seal(block)
        index.unreference(block)
    index.check_integrity()
    return 0


def num_present(index: RamIndex, addresses: list[bytes]) -> int:
    return sum(index.sealed(address) is not None for address in addresses)


def at(index: RamIndex, address: bytes) -> Block:
    block = index.sealed(address)
    assert block is not None
    return block


def test_a_tenant_at_its_share_gives_its_own_blocks_and_never_those_of_others() -> None:
    index = made(10)
    index.set_caps({ACME: 3})
    put(index, chain(5, seed=1), OTHER)  # the least recently used of all
    put(index, chain(3, seed=2), ACME)
    assert put(index, chain(2, seed=3), ACME) == 0
    assert num_present(index, chain(5, seed=1)) == 5
    assert num_present(index, chain(3, seed=2)) == 1
    assert index.shares.num_held[ACME] == 3
    assert index.num_free == 2
    assert index.num_share_evictions == 2


def test_a_tenant_at_its_share_is_refused_only_when_it_can_give_nothing() -> None:
    index = made(10)
    index.set_caps({ACME: 2})
    first, second = chain(1, seed=1), chain(1, seed=2)
    put(index, first, ACME)
    pending = index.take(second[0], ROOT, 0, 4, ACME)  # a block being written counts
    assert pending is not None
    index.reference(at(index, first[0]))
    assert put(index, chain(1, seed=3), ACME) == 1
    assert put(index, chain(1, seed=3), OTHER) == 0
    index.unreference(at(index, first[0]))
    assert put(index, chain(1, seed=4), ACME) == 0
    assert num_present(index, first) == 0


def test_an_abandoned_block_counts_until_its_slot_is_free() -> None:
    index = made(4)
    index.set_caps({ACME: 1})
    block = index.take(chain(1)[0], ROOT, 0, 4, ACME)
    assert block is not None
    index.drop(block)
    assert put(index, chain(1, seed=1), ACME) == 1
    index.unreference(block)
    assert put(index, chain(1, seed=1), ACME) == 0


def test_a_share_made_smaller_takes_effect_with_the_next_block() -> None:
    index = made(10)
    put(index, chain(6, seed=1), ACME)
    index.set_caps({ACME: 2})
    assert index.shares.num_held[ACME] == 6
    assert put(index, chain(1, seed=2), ACME) == 0
    assert index.shares.num_held[ACME] == 2
    index.set_caps({})
    assert put(index, chain(8, seed=3), ACME) == 0
    assert index.shares.num_held[ACME] == 10


def test_what_turns_out_to_be_a_tenants_is_charged_to_it() -> None:
    index = made(10)
    index.set_caps({ACME: 2})
    put(index, chain(2, seed=1), ACME)
    block = index.take(chain(1)[0], ROOT, 0, 4, SHARED)
    assert block is not None
    index.retag(block, ACME)
    assert dict(index.shares.num_held) == {ACME: 2}
    assert num_present(index, chain(2, seed=1)) == 1
    index.seal(block)
    index.unreference(block)
    index.check_integrity()


def test_a_tenants_end_of_a_public_prefix_goes_and_the_prefix_stays() -> None:
    index = made(10)
    index.set_caps({ACME: 3})
    prefix = chain(4)
    put(index, prefix, SHARED)
    tail = chain(3, seed=1, root=prefix[-1])
    for position, address in enumerate(tail):
        block = index.take(address, [*prefix, *tail][position + 3], position + 4, 4, ACME)
        assert block is not None
        index.seal(block)
        index.unreference(block)
    put(index, chain(3, seed=2), ACME)
    assert (num_present(index, prefix), num_present(index, tail)) == (4, 0)


def test_a_parked_chain_outlives_chains_that_were_used_more() -> None:
    index = made(8)
    parked, hot = chain(3), chain(3, seed=1)
    put(index, parked)
    put(index, hot)
    for _ in range(9):
        index.use(at(index, hot[-1]))
    index.park(at(index, parked[-1]), 4)
    put(index, chain(5, seed=2))
    assert (num_present(index, parked), num_present(index, hot)) == (3, 0)


def test_a_parked_chain_that_is_used_again_is_an_ordinary_one() -> None:
    index = made(6)
    parked, hot = chain(3), chain(3, seed=1)
    put(index, parked)
    index.park(at(index, parked[-1]), 3)
    put(index, hot)
    index.use(at(index, parked[-1]))
    assert index.parking.num_blocks == 0
    for _ in range(9):
        index.use(at(index, hot[-1]))
    put(index, chain(3, seed=2))
    assert (num_present(index, parked), num_present(index, hot)) == (0, 3)


def test_parked_chains_keep_no_more_than_their_part_and_the_longest_parked_lose_first() -> None:
    index = made(12)
    chains = [chain(3, seed=seed) for seed in range(4)]
    for addresses in chains:
        put(index, addresses)
    for addresses in chains[:3]:
        index.park(at(index, addresses[-1]), 7)
    index.check_integrity()
    assert index.parking.num_blocks == 7
    put(index, chain(5, seed=9))
    # the ordinary chain and the end of the first parked one, which was cut at one point
    assert [num_present(index, addresses) for addresses in chains] == [1, 3, 3, 0]


def test_a_chain_longer_than_the_parked_part_keeps_its_front() -> None:
    index = made(10)
    long = chain(10)
    put(index, long)
    index.park(at(index, long[-1]), 4)
    index.check_integrity()
    assert index.parking.num_blocks == 4
    put(index, chain(3, seed=1))
    assert [index.sealed(address) is not None for address in long] == [True] * 7 + [False] * 3


def test_a_shared_front_is_parked_once() -> None:
    index = made(12)
    front = chain(4)
    ends = [chain(2, seed=seed, root=front[-1]) for seed in (1, 2)]
    put(index, front)
    for end in ends:
        put(index, [*front, *end])
        index.park(at(index, end[-1]), 12)
    assert index.parking.num_blocks == 8
