"""What records are worth, which segment goes, and what is kept of it."""

import pytest

from pagoda_sidecar.disk.chains import DISK, RAM, Chains
from pagoda_sidecar.disk.index import DiskIndex, Segment
from tests.sidecar.disk.support import ROOT, STRIDE, chain, record


class Shelf:
    """An index whose segments are filled by hand."""

    def __init__(self) -> None:
        self.chains = Chains()
        self.index = DiskIndex(self.chains)
        self.chains.on_rooted = self.index.rooted
        self.index.begin(50.0)

    def fill(self, sequence: int, places: list[tuple[list[bytes], int]], tag: int = 1) -> Segment:
        segment = self.index.open_segment(sequence, 20 * STRIDE)
        for number, (addresses, position) in enumerate(places):
            assert self.index.add(record(addresses, position, tag).header, segment, number * STRIDE) is not None
            self.index.advance(1)
        self.index.check_integrity()
        return segment


def of(addresses: list[bytes], first: int = 0) -> list[tuple[list[bytes], int]]:
    return [(addresses, position) for position in range(first, len(addresses))]


def test_the_segment_goes_that_was_used_least_for_its_bytes() -> None:
    shelf, one, other = Shelf(), chain(4, 1), chain(4, 2)
    first, second = shelf.fill(1, of(one)), shelf.fill(2, of(other))
    assert shelf.index.victim(None) is first
    for _ in range(3):
        shelf.index.touch(one[-1])
    assert shelf.index.victim(None) is second
    assert shelf.index.victim(second) is first, "never the open one"
    first.num_readers = 1
    assert shelf.index.victim(second) is None, "nor one that is being read"


def test_a_segment_of_what_nobody_can_reach_is_worth_nothing_until_its_front_is_there() -> None:
    shelf, one, other = Shelf(), chain(6, 1), chain(4, 2)
    shelf.fill(1, of(other))
    cut_off = shelf.fill(2, of(one, first=2))
    assert cut_off.heat == 0
    assert shelf.index.victim(None) is cut_off
    for position in (0, 1):  # RAM has the front
        header = record(one, position).header
        shelf.chains.add(RAM, header.address, header.parent, header.index)
    assert cut_off.heat > 0
    shelf.index.check_integrity()
    shelf.chains.remove(RAM, one[0])
    assert cut_off.heat == pytest.approx(0)
    shelf.index.check_integrity()


def test_a_front_is_no_colder_than_what_is_reached_over_it_however_the_chain_came_together() -> None:
    shelf, one = Shelf(), chain(5, 1)
    shelf.fill(1, [(one, 0)])
    shelf.fill(2, of(one, first=2))
    for _ in range(5):
        shelf.index.touch(one[-1])  # 1 is missing: the front hears nothing of it
    front, end = shelf.index.get(one[0]), shelf.index.get(one[-1])
    assert front is not None
    assert end is not None
    assert front.heat < end.heat
    header = record(one, 1).header
    shelf.chains.add(RAM, header.address, header.parent, header.index)
    assert front.heat == end.heat
    shelf.index.check_integrity()


def test_survivors_are_hot_whole_towards_the_front_and_within_the_budget() -> None:
    shelf, hot, cold, split = Shelf(), chain(4, 1), chain(6, 2), chain(3, 3)
    segment = shelf.fill(1, [*of(hot), *of(cold), (split, 0)])
    shelf.fill(2, of(split, first=1))
    for _ in range(6):
        shelf.index.touch(hot[1])
    kept = {entry.link.address for entry in shelf.index.survivors(segment, 20 * STRIDE)}
    assert set(hot[:2]) <= kept
    assert not kept & set(cold)
    assert split[0] in kept, "two others elsewhere follow on it"
    small = [entry.link.address for entry in shelf.index.survivors(segment, STRIDE)]
    assert small == [hot[0]], "the front first"


def test_a_record_superseded_by_another_copy_leaves_no_trace() -> None:
    shelf, one = Shelf(), chain(3, 1)
    first = shelf.fill(1, of(one))
    second = shelf.fill(2, of(one))
    assert not first.entries
    assert first.heat == 0
    assert {entry.link.address for entry in second.entries} == set(one)


def test_two_records_that_cannot_be_told_apart_are_not_both_there() -> None:
    shelf, one = Shelf(), chain(2, 1)
    segment = shelf.fill(1, of(one))
    header = record(one, 1).header
    twin = header.__class__(**{**vars(header), "address": header.address[:16] + b"?" * 16})
    assert shelf.index.add(twin, segment, 10 * STRIDE) is None
    assert shelf.index.get(twin.address) is None
    assert shelf.chains.add(DISK, one[1], ROOT, 7) is None, "nor at two places of a chain"
    shelf.index.check_integrity()


def test_heat_survives_a_very_long_life() -> None:
    shelf, one, other = Shelf(), chain(3, 1), chain(3, 2)
    shelf.fill(1, of(one))
    shelf.fill(2, of(other))
    for _ in range(200):
        shelf.index.advance(200)
        shelf.index.touch(one[-1])
        shelf.index.check_integrity()
    victim = shelf.index.victim(None)
    assert victim is not None
    assert victim.sequence == 2


def test_chains_end_even_if_records_point_at_each_other() -> None:
    chains = Chains()
    one, other = b"a" * 32, b"b" * 32
    chains.add(DISK, one, other, 3)
    link = chains.add(DISK, other, one, 2)
    assert link is not None
    assert len(list(chains.upwards(link))) <= 4
    assert not chains.is_rooted(one)
