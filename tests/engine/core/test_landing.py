"""One page, one writer, however the two threads of a race interleave."""

from hypothesis import given
from hypothesis import strategies as st

from pagoda_engine.core.landing import Landing


def test_a_block_that_is_being_written_is_not_given_away():
    landing = Landing(2)
    assert landing.claim(8)
    assert landing.reserve(2, 10) == 8
    assert landing.floor == 8
    assert landing.arrived(8, "pool")
    assert (landing.lowest(2), landing.source_of(8), landing.source_of(7)) == (8, "pool", None)
    landing.take(8)
    assert (landing.lowest(2), landing.floor) == (None, 9)


def test_what_lies_below_the_floor_is_not_written():
    landing = Landing(0)
    assert landing.reserve(0, 5) == 5
    assert not landing.claim(4)
    assert not landing.arrived(4, "pool")
    assert landing.claim(5)


def test_a_block_that_was_seized_while_it_was_written_does_not_count():
    landing = Landing(0)
    assert landing.claim(3)
    landing.seize(3)
    assert landing.claimed == 3, "its page is still being written"
    assert not landing.arrived(3, "ram")
    assert (landing.claimed, landing.lowest(0)) == (None, None)


def test_a_landed_block_that_was_got_elsewhere_is_forgotten():
    landing = Landing(0)
    assert landing.claim(0)
    assert landing.arrived(0, "ram")
    landing.seize(0)
    assert (landing.lowest(0), landing.floor) == (None, 1)


def test_a_call_that_has_ended_writes_nothing_more():
    landing = Landing(0)
    assert landing.claim(6)
    landing.let_go()
    assert landing.reserve(0, 7) == 7


@given(st.lists(st.tuples(st.sampled_from(["claim", "arrived", "reserve"]), st.integers(0, 9)), max_size=60))
def test_nobody_writes_what_the_other_one_has(moves):
    landing, computed, writing, landed = Landing(0), 0, None, set()
    for move, position in moves:
        if move == "claim" and writing is None:
            if landing.claim(position):
                assert position >= computed
                writing = position
        elif move == "arrived" and writing is not None:
            assert landing.arrived(writing, "pool")
            landed.add(writing)
            writing = None
        elif move == "reserve" and position > computed:
            stop = landing.reserve(computed, position)
            assert not landed & set(range(computed, stop))
            assert writing is None or not computed <= writing < stop
            computed = max(computed, stop)
