"""What stays and what goes on traces, against the best possible cache."""

import itertools
import random
from collections.abc import Sequence

import pytest

from pagoda_sidecar.arena.slots.memory import Memory
from pagoda_sidecar.arena.slots.policy import FadingFrequency
from tests.support.eviction.online import hits_of_counting, hits_of_knowing
from tests.support.eviction.optimum import optimum
from tests.support.eviction.replay import Cache, LruReplay, RamReplay
from tests.support.eviction.traces import Request, num_prompt_blocks, scan, sessions, zipf, zipf_and_scan


def rate(cache: Cache, trace: Sequence[Request]) -> float:
    return sum(map(cache.serve, trace)) / num_prompt_blocks(trace)


@pytest.mark.parametrize("seed", [5, 6])
def test_zipf_and_scan_come_near_the_best_that_counting_could_do(seed: int) -> None:
    """All is drawn from the seed: the rates are the same each time. The optimum is far on short traces."""
    trace = list(zipf_and_scan(1500, seed, num_documents=100))
    num_asked = num_prompt_blocks(trace)
    replay = RamReplay(1000)
    ours = rate(replay, trace)
    assert ours <= hits_of_knowing(trace, 1000) / num_asked < optimum(trace, 1000).num_hits / num_asked
    assert ours > hits_of_counting(trace, 1000) / num_asked - 0.02
    assert ours > rate(LruReplay(1000), trace) + 0.08
    assert replay.num_unreachable == 0
    replay.index.check_integrity()


def test_conversations_are_kept_nearly_as_well_as_by_recency_alone() -> None:
    trace = list(sessions(2000, num_alive=40))
    assert rate(RamReplay(1000), trace) > rate(LruReplay(1000), trace) - 0.03


def test_a_scan_leaves_the_hot_set_and_a_parked_session() -> None:
    replay, once = RamReplay(400), scan(1)
    hot = [next(once) for _ in range(5)]
    for request in hot * 6:
        replay.serve(request)
    session = next(once)
    replay.serve(session)
    block = replay.index.sealed(session.chain[-1])
    assert block is not None
    replay.index.park(block, 200)
    for request in itertools.islice(once, 40):  # about three times the tier
        replay.serve(request)
    assert sum(map(replay.serve, hot)) == num_prompt_blocks(hot)
    assert replay.serve(session) == session.num_prompt


def test_a_document_that_was_evicted_is_known_again() -> None:
    policy = FadingFrequency(100, Memory(100, (64.0,), 0))
    replay, once = RamReplay(100, policy), scan(2)
    known = Request(next(once).chain[:30], 30)
    for _ in range(5):
        replay.serve(known)
    last = replay.index.sealed(known.chain[-1])
    while replay.index.sealed(known.chain[0]) is not None:  # nobody is better, so it is dropped by hand
        for address in reversed(known.chain):
            block = replay.index.sealed(address)
            assert block is not None
            replay.index.drop(block)
    assert last is not None
    replay.serve(known)
    for request in itertools.islice(once, 10):
        replay.serve(request)
    assert replay.serve(known) == 30


@pytest.mark.parametrize(
    ("trace", "is_long"), [(zipf(1500, num_documents=150), True), (sessions(1500, num_alive=40), False)]
)
def test_uses_count_for_longer_where_frequency_tells_more_than_recency(trace: Sequence[Request], is_long: bool) -> None:
    memory = Memory(1000)
    replay = RamReplay(1000, FadingFrequency(1000, memory))
    for request in trace:
        replay.serve(request)
    assert (memory.half_life >= 16_000) == is_long


def test_the_optimum_is_what_trying_everything_finds() -> None:
    chance = random.Random(7)
    tree = {name: bytes([name]) * 32 for name in range(7)}  # 0 → 1 → 2, 1 → 3, 4 → 5 → 6
    chains = [[0, 1, 2], [0, 1, 3], [0, 1], [4, 5, 6], [4, 5], [0], [4]]
    for _ in range(30):
        trace = [Request(tuple(tree[name] for name in chosen), len(chosen)) for chosen in chance.choices(chains, k=7)]
        for num_slots in (1, 2, 3):
            assert optimum(trace, num_slots).num_hits == best_by_trying(trace, num_slots)


def best_by_trying(trace: Sequence[Request], num_slots: int) -> int:
    """Return the most usable hits of any sequence of choices of what to keep after each access."""
    states: dict[frozenset[bytes], int] = {frozenset(): 0}
    for request in trace:
        reached = {(state, True): num_hits for state, num_hits in states.items()}
        for address in request.chain:
            following: dict[tuple[frozenset[bytes], bool], int] = {}
            for (state, is_usable), num_hits in reached.items():
                is_hit = is_usable and address in state
                for kept in choices(state, address, num_slots):
                    key = kept, is_hit
                    following[key] = max(following.get(key, 0), num_hits + is_hit)
            reached = following
        states = {}
        for (state, _), num_hits in reached.items():
            states[state] = max(states.get(state, 0), num_hits)
    return max(states.values())


def choices(state: frozenset[bytes], address: bytes, num_slots: int) -> list[frozenset[bytes]]:
    if address in state:
        return [state]
    if len(state) < num_slots:
        return [state, state | {address}]
    return [state, *((state - {other}) | {address} for other in state)]
