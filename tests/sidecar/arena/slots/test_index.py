"""The index's rules one by one; `test_tier_model` throws them together."""

from pagoda_sidecar.arena.slots.index import RamIndex
from pagoda_sidecar.arena.slots.policy import FadingFrequency
from tests.sidecar.support import ROOT, chain


def made(num_slots: int) -> RamIndex:
    return RamIndex(num_slots, FadingFrequency(num_slots))


def put(index: RamIndex, addresses: list[bytes], first: int = 0) -> bool:
    """Store the chain from `first` on; False when something had no slot."""
    parents = [ROOT, *addresses]
    for position in range(first, len(addresses)):
        block = index.take(addresses[position], parents[position], position, 4)
        if block is None:
            return False
        index.seal(block)
        index.unreference(block)
    index.check_integrity()
    return True


def present(index: RamIndex, addresses: list[bytes]) -> list[bool]:
    return [index.sealed(address) is not None for address in addresses]


def test_leaves_go_first_and_the_least_recently_used_chain_before_others() -> None:
    index = made(6)
    old, new = chain(3), chain(3, seed=1)
    put(index, old)
    put(index, new)
    put(index, chain(2, seed=2))
    assert present(index, old) == [True, False, False]
    assert present(index, new) == [True, True, True]


def test_heat_outlives_a_burst_of_what_nobody_repeats() -> None:
    index = made(8)
    hot = chain(2)
    put(index, hot)
    for _ in range(8):
        block = index.sealed(hot[-1])
        assert block is not None
        index.use(block)
    for seed in range(1, 8):
        put(index, chain(1, seed=seed))
    assert present(index, hot) == [True, True]


def test_a_referenced_block_is_never_evicted_and_a_full_arena_refuses() -> None:
    index = made(2)
    addresses = chain(2)
    put(index, addresses)
    block = index.sealed(addresses[1])
    assert block is not None
    index.reference(block)
    assert not put(index, chain(1, seed=1))
    index.unreference(block)
    assert put(index, chain(1, seed=1))


def test_a_chain_is_rooted_when_its_missing_front_arrives_and_not_when_it_is_damaged() -> None:
    index = made(8)
    told: list[bytes] = []
    index.on_residency = told.append
    addresses = chain(4)
    put(index, addresses, first=2)
    assert told == []
    put(index, addresses[:2])
    assert told == addresses
    told.clear()
    middle = index.sealed(addresses[1])
    assert middle is not None
    index.drop(middle)
    index.check_integrity()
    assert told == addresses[1:]
    assert [block.is_rooted for block in sorted(index, key=lambda block: block.index)] == [True, False, False]


def test_a_dropped_block_keeps_its_slot_while_it_is_referenced() -> None:
    index = made(2)
    void: list[int] = []
    index.on_void = void.append
    put(index, chain(1))
    block = index.sealed(chain(1)[0])
    assert block is not None
    index.reference(block)
    index.drop(block)
    assert present(index, chain(1)) == [False]
    assert (index.num_free, void) == (1, [])
    put(index, chain(1))  # the same address anew, elsewhere
    index.unreference(block)
    assert (index.num_free, void) == (1, [block.slot])
    index.check_integrity()


def test_a_front_that_names_a_block_as_its_parent_is_refused_else_that_block_would_stay_for_ever() -> None:
    index = made(2)
    (front,) = chain(1)
    put(index, [front])
    assert index.take(chain(1, seed=1)[0], front, 0, 4) is None
    assert put(index, chain(2, seed=2)), "both slots can be had"
