"""The prefix table: reachable, exact, leaf first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_engine.core import request as request_module
from pagoda_engine.core.blocks import Pages
from pagoda_engine.core.prefix import Block, PrefixTable
from tests.engine.core.bench import Bench

ROOT, OTHER_ROOT = bytes(32), bytes([9]) * 32


def table_of(num_pages: int) -> tuple[Pages, PrefixTable]:
    pages = Pages(num_pages)
    return pages, PrefixTable(pages)


def add(table: PrefixTable, name: str, parent: Block | None = None, root: bytes = ROOT) -> Block:
    taken = table.take(1)
    assert taken is not None
    block = table.publish(name.encode(), root, parent, tuple(name.encode()), taken[0])
    assert block is not None
    return block


def test_a_hit_compares_tokens_parent_and_root_and_not_the_address_alone():
    _, table = table_of(4)
    parent = add(table, "a")
    block = add(table, "b", parent)
    assert table.find(b"b", ROOT, parent, tuple(b"b")) is block
    assert table.find(b"b", ROOT, parent, (1, 2)) is None
    assert table.find(b"b", ROOT, None, tuple(b"b")) is None
    assert table.find(b"b", OTHER_ROOT, parent, tuple(b"b")) is None
    assert table.find(b"c", ROOT, parent, tuple(b"b")) is None


def test_an_address_taken_by_other_tokens_is_not_published_twice():
    _, table = table_of(4)
    add(table, "a")
    (page,) = table.take(1) or []
    assert table.publish(b"a", ROOT, None, (1, 2, 3), page) is None
    table.release(page)
    table.check_integrity()


def test_a_block_whose_parent_is_gone_is_not_published():
    _, table = table_of(2)
    parent = add(table, "a")
    table.release(parent.page)
    first, second = table.take(2) or []
    assert table.publish(b"b", ROOT, parent, (1,), first) is None
    table.release(first)
    table.release(second)
    table.check_integrity()


def test_eviction_takes_leaves_first_and_the_least_recently_used_of_them():
    _, table = table_of(4)
    evicted: list[bytes] = []
    table.on_removed = evicted.append
    trunk = add(table, "a")
    old, young = add(table, "b", trunk), add(table, "c", trunk)
    for block in (trunk, old, young):
        table.release(block.page)
    table.hold(old.page)
    table.release(old.page)
    assert table.take(4) is not None
    assert evicted == [b"c", b"b", b"a"]


def test_a_held_block_keeps_everything_above_it_and_is_not_counted_as_available():
    _, table = table_of(3)
    trunk = add(table, "a")
    leaf = add(table, "b", trunk)
    table.release(trunk.page)
    assert table.num_available == 1
    assert table.take(2) is None
    table.check_integrity()
    table.release(leaf.page)
    assert table.num_available == 3
    assert table.take(3) is not None


@given(st.lists(st.tuples(st.sampled_from(["add", "hold", "release", "take"]), st.integers(0, 30)), max_size=60))
def test_what_is_promised_as_available_is_there_and_every_block_stays_reachable(actions):
    pages, table = table_of(8)
    known: list[Block] = []
    holds: list[int] = []
    for number, (action, choice) in enumerate(actions):
        present = [block for block in known if block in table]
        if action == "add" and (taken := table.take(1)):
            parent = present[choice % len(present)] if present and choice % 4 else None
            holds += taken
            if parent is None or parent in table:  # taking the page may have evicted it
                block = table.publish(bytes([number]), ROOT, parent, (number,), taken[0])
                assert block is not None
                known.append(block)
        elif action == "hold" and present:
            block = present[choice % len(present)]
            table.hold(block.page)
            holds.append(block.page)
        elif action == "release" and holds:
            table.release(holds.pop(choice % len(holds)))
        elif action == "take":
            promised = table.num_available
            taken = table.take(promised) or []
            assert len(taken) == promised
            assert table.take(1) is None
            for page in taken:
                table.release(page)
        table.check_integrity()
        assert pages.num_free + pages.num_cached + pages.num_referenced == 8


def test_a_page_is_never_freed_while_held_nor_held_while_free():
    pages = Pages(2)
    page = pages.take()
    with pytest.raises(AssertionError, match="while 1 hold it"):
        pages.give_back(page)
    pages.release(page)
    with pytest.raises(AssertionError, match="more often"):
        pages.release(page)
    pages.give_back(page)
    with pytest.raises(AssertionError, match="freed twice"):
        pages.give_back(page)
    with pytest.raises(AssertionError, match="though it is free"):
        pages.hold(page)


def test_colliding_addresses_never_give_one_request_the_blocks_of_another(monkeypatch):
    """E15: a hash so weak that all blocks at one depth collide. Nothing is shared that is not equal, all are right."""
    monkeypatch.setattr(
        request_module, "block_address", lambda parent, tokens: bytes([parent[0] + 1]) * 32 if parent else b""
    )
    bench = Bench()
    names = [
        bench.submit([start, *range(12)], max_tokens=9, root=root) for start in (1, 2) for root in (ROOT, OTHER_ROOT)
    ]
    bench.run()
    again = bench.complete([1, *range(12)], max_tokens=9, root=ROOT)
    for name in names:
        bench.assert_right(name)
        assert bench.sources(name) == {"compute": 13}
    assert again.sources is not None
    assert again.sources["device"] == 12
    bench.assert_baseline()
