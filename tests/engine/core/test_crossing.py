"""Chains that begin in a public prefix and go on in a tenant's scope: what is shared, and what never is."""

import pytest

from pagoda_engine.core.request import Crossing
from pagoda_protocol.addresses import block_address
from tests.engine.core.bench import Bench
from tests.engine.core.fake_tiers import FakeTiers
from tests.engine.core.oracle import BLOCK_TOKENS

PUBLIC_BLOCKS = 2
PROMPT = list(range(5 * BLOCK_TOKENS + 1))
SHARED = {"root": b"s" * 32, "tenant_tag": 1}
ACME = Crossing(PUBLIC_BLOCKS, b"a" * 32, 2)
OTHER = Crossing(PUBLIC_BLOCKS, b"o" * 32, 3)
WHOLE = {"device": 5 * BLOCK_TOKENS, "compute": 1}
PUBLIC_ALONE = {"device": PUBLIC_BLOCKS * BLOCK_TOKENS, "compute": 3 * BLOCK_TOKENS + 1}


def found(bench: Bench, **of: object) -> dict[str, int]:
    """Return where the prompt's tokens came from, those of no source left out."""
    event = bench.complete(PROMPT, **SHARED, **of)
    assert event.sources is not None
    return {source: num for source, num in event.sources.items() if num}


def test_another_tenant_hits_the_public_blocks_of_the_device_alone_and_the_same_one_all():
    bench = Bench()
    assert found(bench, crossing=ACME) == {"compute": len(PROMPT)}
    assert found(bench, crossing=OTHER) == PUBLIC_ALONE
    assert found(bench, crossing=ACME) == WHOLE
    assert found(bench, crossing=OTHER) == WHOLE
    bench.assert_baseline()


def test_who_does_not_cross_shares_the_public_blocks_with_who_does():
    bench = Bench()
    assert found(bench, crossing=ACME) == {"compute": len(PROMPT)}
    assert found(bench) == PUBLIC_ALONE


@pytest.mark.parametrize("tier", ["ram", "pool"])
def test_another_tenant_loads_the_public_blocks_alone_from_below(tier):
    tiers = FakeTiers()
    first = Bench(tiers=tiers)
    first.complete(PROMPT, **SHARED, crossing=ACME)
    first.run()
    if tier == "pool":
        tiers.ram, tiers.pool = {}, tiers.ram
    public, whole = PUBLIC_BLOCKS * BLOCK_TOKENS, 5 * BLOCK_TOKENS
    assert found(Bench(tiers=tiers), crossing=OTHER) == {tier: public, "compute": len(PROMPT) - public}
    assert found(Bench(tiers=tiers), crossing=ACME).get("compute") == len(PROMPT) - whole


def test_records_link_across_the_crossing_and_have_the_tag_of_their_scope():
    tiers = FakeTiers()
    bench = Bench(tiers=tiers)
    bench.complete(PROMPT, **SHARED, crossing=ACME)
    bench.run()
    records = sorted(tiers.records.values(), key=lambda record: record.index)
    assert [record.tenant_tag for record in records] == [1, 1, 2, 2, 2]
    assert [record.parent for record in records] == [b"s" * 32, *(record.address for record in records[:-1])]
    tokens = [PROMPT[start : start + BLOCK_TOKENS] for start in range(0, 5 * BLOCK_TOKENS, BLOCK_TOKENS)]
    assert records[2].address == block_address(ACME.root, tokens[2]), "the chain goes on from the crossing's value"
    assert records[3].address == block_address(records[2].address, tokens[3])


def test_ancestors_that_are_stored_late_keep_the_tag_of_their_own_scope():
    tiers = FakeTiers()
    tiers.attached = False
    bench = Bench(tiers=tiers)
    name = bench.submit(PROMPT, max_tokens=40, **SHARED, crossing=ACME)
    bench.step(4)
    tiers.attached = True
    bench.clock.now += 10.0  # past the wait after a store that could not be made
    bench.run(name)
    tags = {record.index: record.tenant_tag for record in tiers.records.values()}
    assert [tags[index] for index in range(5)] == [1, 1, 2, 2, 2]


def test_two_tenants_whose_chains_meet_in_one_address_are_told_apart(monkeypatch):
    """Whatever the hash does: a block of another scope is no hit, and is not shared."""
    monkeypatch.setattr("pagoda_engine.core.request.block_address", lambda parent, tokens: bytes([tokens[0]]) * 32)
    bench = Bench()
    assert found(bench, crossing=ACME) == {"compute": len(PROMPT)}
    assert found(bench, crossing=OTHER) == PUBLIC_ALONE
    assert found(bench, crossing=OTHER) == PUBLIC_ALONE


def test_a_crossing_before_the_first_block_is_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="crossing: expected at least one block before it"):
        Bench().submit(PROMPT, **SHARED, crossing=Crossing(0, b"a" * 32, 2))
