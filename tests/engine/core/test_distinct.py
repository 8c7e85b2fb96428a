"""A HyperLogLog against exact sets."""

import hashlib
import random

import pytest

from pagoda_engine.core.distinct import DistinctCounter


def item(number: int) -> bytes:
    return hashlib.sha256(number.to_bytes(8, "little")).digest()


@pytest.mark.parametrize("num_items", [1, 100, 20_000, 200_000])
def test_the_number_of_different_items_is_right_within_four_standard_errors(num_items: int) -> None:
    counter = DistinctCounter()
    total = sum(counter.add(item(number)) for number in range(num_items))
    assert total == pytest.approx(num_items, rel=4 * 0.83 / 128, abs=0.5)


def test_an_item_that_was_there_never_counts_again() -> None:
    counter = DistinctCounter(index_bits=6)
    items = [item(number) for number in range(5000)]
    for one in items:
        counter.add(one)
    assert all(counter.add(one) == 0.0 for one in items)


def test_any_part_of_a_stream_can_be_told_how_many_new_items_it_had() -> None:
    """Two kinds of items, interleaved and overlapping: each kind's increases add up to what it was first with."""
    chance = random.Random(4)
    counter, exact = DistinctCounter(), set()
    estimates, counts = {"a": 0.0, "b": 0.0}, {"a": 0, "b": 0}
    for _ in range(120_000):
        kind, number = ("a", chance.randrange(50_000)) if chance.random() < 0.7 else ("b", chance.randrange(80_000))
        estimates[kind] += counter.add(item(number))
        counts[kind] += number not in exact
        exact.add(number)
    for kind, count in counts.items():
        assert estimates[kind] == pytest.approx(count, rel=0.05)
