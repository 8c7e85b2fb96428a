"""Half a minute of the storm; e2e/ holds minutes of it and `make faults` a million operations."""

import random
import secrets

import pytest

from tests.faults.mischief import Deck, names_of_all
from tests.faults.storm import Storm
from tests.faults.world import running_world
from tests.support.memcached import needs_memcached

SECONDS = 25.0


@needs_memcached
@pytest.mark.timeout(240)
def test_e22_e24_under_random_faults_no_byte_is_wrong_no_call_hangs_and_all_is_given_back() -> None:
    seed = secrets.token_hex(4)
    with running_world() as world:
        outcome = Storm(world, seed).run(10**6, SECONDS)
        assert not outcome.wrongs, f"PAGODA_FAULT_SEED={seed}: {outcome.wrongs}"
        assert outcome.num_calms >= 2, seed
        assert outcome.counts["loaded.ram"], f"nothing was loaded, so nothing was checked: {outcome.counts}"
        assert outcome.faults.total() > 50, f"hardly anything went wrong: {outcome.faults}"


@needs_memcached
@pytest.mark.timeout(120)
def test_a_wrong_byte_would_be_seen() -> None:
    """The oracle expects other bytes than engines store: what is loaded must be called wrong at once."""
    with running_world(num_threads=2, environment={"PAGODA_FAULT_ORACLE": "other"}) as world:
        outcome = Storm(world, "fixed").run(10**6, 30.0)
        assert any("wrong bytes" in wrong for wrong in outcome.wrongs)


def test_a_deck_deals_every_card_before_any_comes_again() -> None:
    deck = Deck(random.Random(5), range(7))
    for _ in range(3):
        assert sorted(deck.deal() for _ in range(7)) == list(range(7))


def test_every_kind_of_fault_has_a_name_of_its_own() -> None:
    names = names_of_all()
    assert len(names) > 100
    assert {"fetch.flip.xxh3", "store.resigned.payload", "ack.drop", "kill.seal.torn", "arena.flip.parent"} <= names
