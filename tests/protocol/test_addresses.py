import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_protocol.addresses import (
    SELF_TEST_ADDRESS,
    block_address,
    chain_addresses,
    self_test_address,
)

ROOT = bytes(range(32))
tokens_strategy = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40)


def u32(value):
    return bytes(value >> shift & 0xFF for shift in (0, 8, 16, 24))


def by_hand(root, tokens, block_tokens):
    chain, parent = [], root
    for block in range(len(tokens) // block_tokens):
        data = parent
        for token in tokens[block * block_tokens : (block + 1) * block_tokens]:
            data += u32(token)
        parent = hashlib.new("sha256", data).digest()
        chain.append(parent)
    return chain


def test_a_chain_equals_the_one_made_by_hand_and_its_frozen_bytes():
    tokens = [1, 2, 3, 256, 49151, 65536, 2**31, 2**32 - 1, 5]
    chain = chain_addresses(ROOT, tokens, 4)
    assert chain == by_hand(ROOT, tokens, 4)
    assert [address.hex() for address in chain] == [
        "d33f0402b29a2267ba5913477064876015def3d4f19ca009326e2fb28ba2430e",
        "df4474068263d5361fc7c371c3d10f66061fb40149d087c93c9a5a4929376d16",
    ]


def test_extra_keys_are_tagged_length_prefixed_and_in_order_of_their_tags():
    data = ROOT + u32(7) + u32(8) + b"\x01" + u32(3) + b"img" + b"\x02" + u32(0)
    address = block_address(ROOT, [7, 8], {2: b"", 1: b"img"})
    assert address == hashlib.sha256(data).digest()
    assert address.hex() == "0fb551a205fdbb3e97f809bc6588bf99c26d61ede9398a51129eda035407d3b2"


def test_a_process_that_agrees_with_every_other_passes_the_self_test():
    assert self_test_address() == SELF_TEST_ADDRESS
    assert by_hand(ROOT, [0, 1, 49151, 2**31, 2**32 - 1, 7, 7, 7], 4)[-1] == SELF_TEST_ADDRESS


@given(tokens_strategy, st.integers(1, 8), st.lists(st.integers(0, 2**32 - 1), max_size=20))
def test_equal_prefixes_have_equal_addresses_whatever_follows(tokens, block_tokens, more):
    shorter, longer = (chain_addresses(ROOT, part, block_tokens) for part in (tokens, tokens + more))
    assert longer[: len(shorter)] == shorter


@given(tokens_strategy, st.integers(1, 8), st.data())
def test_a_changed_token_changes_its_block_and_all_later_ones_and_none_before(tokens, block_tokens, data):
    position = data.draw(st.integers(0, len(tokens) - 1))
    changed = [*tokens]
    changed[position] ^= 1 << data.draw(st.integers(0, 31))
    one, other = (chain_addresses(ROOT, part, block_tokens) for part in (tokens, changed))
    first = position // block_tokens
    assert one[:first] == other[:first]
    assert not set(one[first:]) & set(other[first:])


@given(tokens_strategy)
def test_another_root_shares_no_address(tokens):
    assert not set(chain_addresses(ROOT, tokens, 1)) & set(chain_addresses(bytes(32), tokens, 1))


extras_strategy = st.dictionaries(st.integers(0, 255), st.binary(max_size=6), max_size=3)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=2), extras_strategy, extras_strategy)
def test_different_extras_give_different_addresses(tokens, one, other):
    assert (block_address(ROOT, tokens, one) == block_address(ROOT, tokens, other)) == (one == other)


def test_a_partial_tail_has_no_address():
    assert chain_addresses(ROOT, [1, 2, 3], 4) == []
    assert len(chain_addresses(ROOT, [1] * 9, 4)) == 2


@pytest.mark.parametrize(
    ("parent", "tokens", "extras"),
    [(b"short", [1], None), (ROOT, [-1], None), (ROOT, [2**32], None), (ROOT, [1], {256: b""}), (ROOT, ["1"], None)],
)
def test_what_has_no_bytes_is_refused(parent, tokens, extras):
    with pytest.raises(ValueError):
        block_address(parent, tokens, extras)
