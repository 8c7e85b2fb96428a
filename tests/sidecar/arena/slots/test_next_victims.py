"""What eviction is said to take next is what it takes, whatever happened before."""

import random

from pagoda_sidecar.arena.slots.block import Block
from pagoda_sidecar.arena.slots.index import RamIndex
from pagoda_sidecar.arena.slots.memory import Memory
from pagoda_sidecar.arena.slots.policy import FadingFrequency
from pagoda_sidecar.arena.slots.run import run_of
from tests.sidecar.support import ROOT, chain

NUM_SLOTS = 60


def grown(seed: int) -> tuple[RamIndex, list[Block]]:
    """Return a full index with a random past, and blocks that somebody holds."""
    chance = random.Random(seed)
    memory = Memory(NUM_SLOTS, (4.0,), 0)  # one that stays, so that time alone changes no order
    index = RamIndex(NUM_SLOTS, FadingFrequency(NUM_SLOTS, memory))
    trunks = [chain(chance.randint(2, 9), seed=number) for number in range(8)]
    for number in range(120):
        addresses = trunks[chance.randrange(8)][: chance.randint(1, 9)]
        addresses = addresses + chain(chance.randint(1, 4), seed=100 + number, root=addresses[-1])
        kept: list[Block] = []
        for position, address in enumerate(addresses):
            block = index.named(address) or index.take(
                address, addresses[position - 1] if position else ROOT, position, 4, chance.randint(1, 3)
            )
            if block is None:
                break
            if not block.is_sealed:
                index.seal(block)
                index.unreference(block)
            index.reference(block)
            kept.append(block)
        for block in kept:
            index.unreference(block)
        if kept:
            index.use(kept[-1])
            if chance.random() < 0.2:
                index.park(kept[-1], NUM_SLOTS // 3)
    for run in {run_of(block) for block in index}:
        index.window.remove(run)  # what the blocks to come would do to it is not foreseen
        index._push(run)
    present = [block for block in index if block.is_sealed]
    held = chance.sample(present, 4)
    for block in held:
        index.reference(block)
    index.check_integrity()
    return index, held


def test_the_next_victims_are_those_that_go_next() -> None:
    for seed in range(20):
        index, _ = grown(seed)
        before = {block.address for block in index}
        foreseen = [block.address for block in index.next_victims(40)]
        assert foreseen == [block.address for block in index.next_victims(40)], "looking changed something"
        assert foreseen[:7] == [block.address for block in index.next_victims(7)]
        assert before == {block.address for block in index}
        index.check_integrity()
        while index.num_free:
            index.take(bytes([seed]) + random.randbytes(31), ROOT, 0, 4)
        gone: list[bytes] = []
        index.on_presence = lambda block, is_there, gone=gone: gone.append(block.address)  # type: ignore[misc]
        for _ in range(len(foreseen)):
            index.take(random.randbytes(32), ROOT, 0, 4)
        assert gone == foreseen


def test_who_is_held_or_has_a_held_block_behind_it_is_no_next_victim() -> None:
    index, held = grown(99)
    victims = set(index.next_victims(NUM_SLOTS))
    for block in held:
        assert not victims.intersection(index.chain(block))
    assert all(block.is_sealed and not block.references for block in victims)
