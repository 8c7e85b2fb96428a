import random
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_sidecar.pool.rendezvous import Rendezvous

_ADDRESSES = [index.to_bytes(32, "big") for index in range(3000)]
_names = st.lists(st.text(min_size=1, max_size=12), min_size=2, max_size=8, unique=True)


@given(_names, st.data())
def test_removing_a_node_moves_only_its_own_addresses(names: list[str], data: st.DataObject) -> None:
    removed = data.draw(st.sampled_from(names))
    before, after = Rendezvous(names), Rendezvous(name for name in names if name != removed)
    for address in _ADDRESSES[:200]:
        owner = before.owner(address)
        assert after.owner(address) == owner or owner == removed


@given(_names, st.randoms())
def test_the_order_of_the_names_is_of_no_account(names: list[str], chance: random.Random) -> None:
    shuffled = list(names)
    chance.shuffle(shuffled)
    assert all(Rendezvous(names).owner(a) == Rendezvous(shuffled).owner(a) for a in _ADDRESSES[:50])


def test_nodes_get_even_shares() -> None:
    shares = Counter(map(Rendezvous(f"chat-memcached-{index}" for index in range(5)).owner, _ADDRESSES))
    assert len(shares) == 5
    assert max(shares.values()) / min(shares.values()) < 1.25


def test_another_process_places_addresses_alike() -> None:
    code = (
        "from pagoda_sidecar.pool.rendezvous import Rendezvous; r = Rendezvous(['a', 'b', 'c']);"
        "print(''.join(r.owner(i.to_bytes(32, 'big')) for i in range(40)))"
    )
    command = [sys.executable, "-c", code]
    output = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "77"}).stdout
    ours = Rendezvous(["c", "b", "a"])
    assert output.strip() == "".join(map(ours.owner, _ADDRESSES[:40]))
    assert output.startswith("bccbababbbba")  # the placement of records that are already out there


def test_no_names_have_no_owner() -> None:
    with pytest.raises(ValueError):
        Rendezvous([]).owner(bytes(32))
