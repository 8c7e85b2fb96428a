"""The digest table: bounded, decaying, kept in the arena's bytes."""

from pagoda_sidecar.arena.layout import DIGEST_ROW_BYTES
from pagoda_sidecar.digest_table import HALF_LIFE_SECONDS, DigestTable


def nobody(address: bytes) -> bool:
    return False


def number(value: int, size: int = 16) -> bytes:
    return value.to_bytes(size, "big")


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def test_heat_counts_uses_and_halves_with_time() -> None:
    clock = Clock()
    table = DigestTable(clock)
    table.record(number(1), 16, number(9, 32), nobody)
    table.touch(number(9, 32))
    row = table.get(number(1))
    assert row is not None
    assert row.heat == 2.0
    clock.now += HALF_LIFE_SECONDS
    table.touch(number(9, 32))
    row = table.get(number(1))
    assert row is not None
    assert row.heat == 2.0


def test_rows_survive_in_the_arena_and_damaged_ones_are_left_out() -> None:
    storage = bytearray(300 * DIGEST_ROW_BYTES)
    table = DigestTable(Clock())
    table.record(number(7), 16, number(70, 32), nobody)  # before there was an arena
    table.use_storage(memoryview(storage))
    for index in range(5):
        table.record(number(index + 1), index, number(index, 32), nobody)
    restarted = DigestTable(Clock())
    storage[storage.index(number(3)) + 20] ^= 1
    restarted.use_storage(memoryview(storage))
    assert sorted(restarted.digests()) == [number(1), number(2), number(4), number(5), number(7)]
    assert restarted.digests_of(number(3, 32)) == {number(4)}


def test_the_coldest_go_first_and_those_that_lead_nowhere_before_them() -> None:
    clock = Clock()
    storage = bytearray(32 * DIGEST_ROW_BYTES)
    table = DigestTable(clock)
    table.use_storage(memoryview(storage))
    gone: list[bytes] = []
    table.on_evicted = gone.append
    for index in range(32):
        table.record(number(index + 1), 1, number(index, 32), nobody)
    for index in (0, 1, 2):
        table.touch(number(index, 32))  # 1, 2, 3 are hot
    resident = {number(index, 32) for index in range(3, 31)}  # the hot ones lead nowhere
    table.record(number(100), 1, number(200, 32), lambda address: address in resident)
    assert gone == [number(32), number(1)]
    assert len(table) == 31
    for index in range(200):
        table.record(number(1000 + index), 1, number(index, 32), nobody)
    assert len(table) <= 32
    restarted = DigestTable(clock)
    restarted.use_storage(memoryview(storage))
    assert set(restarted.digests()) == set(table.digests())


def test_a_digest_that_moves_to_another_address_leaves_the_former_one() -> None:
    table = DigestTable(Clock())
    table.record(number(1), 16, number(5, 32), nobody)
    table.record(number(1), 32, number(6, 32), nobody)
    assert table.digests_of(number(5, 32)) == frozenset()
    assert table.digests_of(number(6, 32)) == {number(1)}
