"""Stores: every block goes below before its request ends, from a page that stays until the copy is done."""

from dataclasses import replace

import pytest

from tests.engine.core.bench import SETTINGS, Bench
from tests.engine.core.fake_tiers import FakeTiers

PROMPT = list(range(21))


def test_a_block_is_stored_when_its_step_has_completed_and_before_its_request_ends():
    tiers = FakeTiers()
    bench = Bench(tiers=tiers)
    name = bench.submit(PROMPT, max_tokens=50)
    bench.step()
    bench.finish_jobs()  # the lookup: nothing there
    assert not tiers.stores
    bench.step()  # 16 tokens
    bench.finish_jobs()
    assert [record.index for record in tiers.stores[0]] == [0, 1, 2, 3]
    assert bench.events[name].finish is None


def test_a_record_names_its_parent_its_place_and_its_tenant():
    tiers = FakeTiers()
    bench = Bench(tiers=tiers)
    bench.complete(PROMPT, root=bytes([5]) * 32, tenant_tag=99)
    bench.run()
    first, second = sorted(tiers.records.values(), key=lambda record: record.index)[:2]
    assert (first.parent, first.index, first.tokens, first.tenant_tag) == (bytes([5]) * 32, 0, 4, 99)
    assert second.parent == first.address


@pytest.mark.parametrize("num_steps", [0, 1, 2])
def test_a_page_that_is_being_stored_is_not_reused_whatever_becomes_of_its_request(num_steps):
    """E1, E2: the oracle poisons freed pages, and what was stored must load as the right KV."""
    tiers = FakeTiers()
    bench = Bench(num_pages=8, tiers=tiers)
    name = bench.submit(PROMPT)
    bench.step()
    bench.finish_jobs()
    bench.step()
    bench.engine.abort(name)
    others = [bench.submit([49, number, *range(10, 18)]) for number in range(2)]
    bench.step(num_steps)
    bench.finish_jobs("tier-store")
    bench.run()
    for other in others:
        bench.assert_right(other)
    bench.assert_baseline()
    cold = Bench(tiers=tiers)
    event = cold.complete(PROMPT, max_tokens=4)
    assert event.sources is not None
    assert event.sources["ram"] == 16


def test_e3_a_failed_store_is_a_miss_later_and_nothing_else():
    tiers = FakeTiers()
    bench = Bench(tiers=tiers)
    name = bench.submit(PROMPT)
    bench.step()
    bench.finish_jobs()
    tiers.is_failing = True
    bench.run(name)
    bench.run()
    assert bench.value("pagoda_tier_stores_total", outcome="unavailable") == 5
    bench.assert_baseline()
    tiers.is_failing = False
    event = Bench(tiers=tiers).complete(PROMPT)
    assert event.sources is not None
    assert event.sources["compute"] == 21


def test_without_a_ram_tier_nothing_is_tried_and_nothing_is_a_failure(caplog):
    tiers = FakeTiers()
    tiers.has_ram = False
    bench = Bench(tiers=tiers)
    bench.complete(PROMPT)
    assert (tiers.stores, tiers.lookups) == ([], [])
    assert bench.value("pagoda_tier_stores_total", outcome="ram_off") == 5
    assert bench.value("pagoda_tier_loads_skipped_total", reason="ram_off") == 1
    assert caplog.messages == []
    tiers.has_ram = True  # it was being allocated
    bench.clock.now += 10
    bench.complete([*PROMPT, 1, 2, 3, 4])
    bench.run()
    assert [record.index for batch in tiers.stores for record in batch] == [0, 1, 2, 3, 4, 5]


def test_the_queue_is_bounded_and_what_was_dropped_goes_with_the_next_block_of_its_chain():
    tiers = FakeTiers()
    bench = Bench(tiers=tiers, settings=replace(SETTINGS, max_store_blocks=3))
    name = bench.submit(PROMPT, max_tokens=12)
    bench.step()
    bench.finish_jobs()
    bench.step(2)
    assert bench.engine.stats().stores_in_flight == 3
    assert bench.value("pagoda_tier_stores_total", outcome="dropped") == 2
    bench.clock.now += 10
    bench.run(name)
    bench.run()
    assert sorted(record.index for record in tiers.records.values()) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [record.index for batch in tiers.stores for record in batch] == list(range(8))


def test_refused_blocks_are_not_offered_again_at_once():
    tiers = FakeTiers()
    tiers.is_refusing = True
    bench = Bench(tiers=tiers)
    bench.complete(PROMPT, max_tokens=12)
    bench.run()
    offered = [record.index for batch in tiers.stores for record in batch]
    assert offered == list(range(8))
    assert bench.value("pagoda_tier_stores_total", outcome="refused") == 8


def test_what_came_out_of_ram_is_not_offered_to_ram_but_what_came_from_the_pool_is():
    tiers = FakeTiers()
    Bench(tiers=tiers).complete(PROMPT)
    (last,) = (record for record in tiers.records.values() if record.index == 4)
    tiers.pool[last.address] = tiers.ram.pop(last.address)
    tiers.stores.clear()
    bench = Bench(tiers=tiers)
    bench.complete([*PROMPT, 1, 2, 3], max_tokens=2)  # one more full block
    bench.run()
    assert [record.index for batch in tiers.stores for record in batch] == [4, 5]


def test_after_a_new_sidecar_has_attached_a_chain_is_offered_again_with_its_next_block():
    tiers = FakeTiers()
    bench = Bench(tiers=tiers)
    bench.complete(PROMPT)
    bench.run()
    tiers.attach_anew(keeps_ram=False)
    tiers.stores.clear()
    bench.complete([*PROMPT, 1, 2, 3], max_tokens=2)
    bench.run()
    assert [record.index for batch in tiers.stores for record in batch] == [0, 1, 2, 3, 4, 5]


def test_nothing_is_stored_while_detached():
    tiers = FakeTiers()
    tiers.attached = False
    bench = Bench(tiers=tiers)
    bench.complete(PROMPT)
    bench.run()
    assert not tiers.stores
    assert bench.value("pagoda_tier_stores_total", outcome="unavailable") == 5


def test_a_tier_that_hangs_costs_a_decode_no_step():
    """Every step still gives a token, though no store ever ends."""
    bench = Bench(num_pages=64, tiers=FakeTiers())
    name = bench.submit(PROMPT, max_tokens=100)
    bench.step()
    bench.finish_jobs("tier-load")
    bench.step(2)  # the prompt
    assert len(bench.events[name].tokens) == 1
    for job in bench.jobs:
        job.advance()  # stuck in its call
    bench.step(99)
    assert bench.events[name].finish == "length"
    bench.assert_right(name)
    bench.finish_jobs()


def num_steps_of(bench: Bench, *, is_hanging: bool) -> int:
    """Serve eight prompts nobody has seen, one after the other, at 20 steps a second."""
    num_steps = 0
    for number in range(8):
        name = bench.submit([number, *PROMPT])
        while bench.events[name].finish is None:
            bench.step()
            num_steps += 1
            assert num_steps < 1000, "a request waits for a store"
            bench.clock.now += 0.05
            bench.finish_jobs("tier-load")
            if not is_hanging:
                bench.finish_jobs()
            elif stores := [job for job in bench.jobs if job.kind == "tier-store"]:
                stores[0].begin()
        bench.assert_right(name)
    return num_steps


def test_stores_that_hang_give_their_pages_back_before_a_request_would_wait_for_them():
    """The device holds two prompts; without that the third would wait for as long as the tier hangs."""
    working, hanging = (Bench(num_pages=14, tiers=FakeTiers()) for _ in range(2))
    prompts = 8
    num_working = num_steps_of(working, is_hanging=False)
    num_hanging = num_steps_of(hanging, is_hanging=True)
    assert hanging.value("pagoda_tier_stores_total", outcome="dropped") > 0
    assert num_hanging <= num_working + prompts * 5  # a quarter of a second each, at most
    hanging.finish_jobs()
    hanging.run()
    hanging.assert_baseline()
    assert len(hanging.tiers.ram) < len(working.tiers.ram)
    assert hanging.value("pagoda_tier_stores_total", outcome="stored") == len(hanging.tiers.ram)


def test_a_store_that_gave_way_is_not_made_and_its_block_is_offered_again_later():
    tiers = FakeTiers()
    bench = Bench(num_pages=14, tiers=tiers)
    bench.submit(PROMPT)
    bench.step()
    bench.finish_jobs("tier-load")
    bench.step(2)
    bench.clock.now += 1
    other = bench.submit([40] * 45)
    bench.step()
    assert bench.value("pagoda_tier_stores_total", outcome="dropped") == 5
    bench.run(other)
    assert not {record.index for batch in tiers.stores for record in batch if record.parent == bytes(32)} - {0}
    assert len({record.address for batch in tiers.stores for record in batch}) == 11
    bench.clock.now += 10
    bench.complete([*PROMPT, 1, 2, 3], max_tokens=2)
    bench.run()
    bench.assert_baseline()
