"""Any order of submitting, stepping, aborting, loading, storing, failing, evicting: outputs stay the reference's.

(E2, E4, E8, E9, E11, E18, E20, E21, E22: their whole kind, on small devices where everything collides.)
"""

import contextlib
import hashlib
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagoda_engine.core import loading
from pagoda_engine.core.request import Crossing
from pagoda_engine.core.tiers import DigestRow
from tests.engine.core.bench import SETTINGS, Bench
from tests.engine.core.fake_tiers import FakeTiers
from tests.engine.core.oracle import BLOCK_TOKENS, VOCABULARY

ROOTS = (bytes(32), bytes([1]) * 32)
# Prompts share prefixes of these, so that hits, claims and forks happen all the time.
STEMS = ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17], [1, 2, 3, 4, 5, 6, 7, 8, 30, 31, 32, 33, 34, 35])

prompts = st.builds(
    lambda stem, length, tail: stem[:length] + tail,
    st.sampled_from(STEMS),
    st.integers(1, 17),
    st.lists(st.integers(0, 3), max_size=3),
)
requests = st.fixed_dictionaries(
    {
        "prompt": prompts,
        "max_tokens": st.integers(1, 20),
        "root": st.sampled_from(ROOTS),
        "seed": st.integers(0, 3),
        "public_blocks": st.integers(0, 2),
        "stop_token_ids": st.frozensets(st.integers(0, VOCABULARY - 1), max_size=1),
    }
)


def crossing(public_blocks, **values):
    """Let the chain cross after so many blocks, to a root that follows from what lies before, as a real one does."""
    if not 0 < public_blocks <= len(values["prompt"]) // BLOCK_TOKENS:
        return values
    before = str((values["root"], values["prompt"][: public_blocks * BLOCK_TOKENS])).encode()
    return values | {"crossing": Crossing(public_blocks, hashlib.sha256(before).digest(), 9)}


class AnyOrder(RuleBasedStateMachine):
    @initialize(
        num_pages=st.integers(10, 16),
        max_batch_tokens=st.integers(2, 24),
        max_sequences=st.integers(2, 6),
        max_preemptions=st.integers(1, 2),
        max_store_blocks=st.integers(0, 8),
        growth_blocks=st.integers(0, 1),
        idle_seconds=st.sampled_from([0.1, 2.0, 1e6]),
        race=st.none() | st.tuples(st.sampled_from([0.0, 0.05, 10.0]), st.integers(1, 8)),
    )
    def begin(
        self,
        num_pages,
        max_batch_tokens,
        max_sequences,
        max_preemptions,
        max_store_blocks,
        growth_blocks,
        idle_seconds,
        race,
    ):
        """`race`: loads are weighed, with what the tiers say that they take and the shortest chunk beside them."""
        self.tiers = FakeTiers()
        self.tiers.pauses_after_copy = race is not None
        self.patches = pytest.MonkeyPatch()
        values = replace(
            SETTINGS,
            max_batch_tokens=max_batch_tokens,
            max_sequences=max_sequences,
            max_preemptions_per_step=max_preemptions,
            max_store_blocks=max_store_blocks,
            growth_blocks=growth_blocks,
            weigh_loads=race is not None,
            load_overhead_seconds=0.0,
        )
        self.settings = values
        self.bench = Bench(num_pages, values, self.tiers)
        if race is not None:
            self.tiers.part_seconds, min_chunk_tokens = race
            self.patches.setattr(loading, "_MIN_CHUNK_TOKENS", min_chunk_tokens)
            self.bench.runner.before_run = self.pass_time
        self.bench.idle_seconds = idle_seconds
        self.touched_aborts: set[str] = set()

    def pass_time(self, chunks):
        self.bench.clock.now += 0.01 * sum(len(chunk.tokens) for chunk in chunks)

    @rule(some=st.lists(requests, min_size=1, max_size=4))
    def submit(self, some):
        for values in some:
            self.bench.submit(**crossing(**values))

    @rule()
    def step(self):
        before = self.bench.engine.stats().num_preemptions
        self.bench.engine.step()
        assert self.bench.engine.stats().num_preemptions - before <= self.settings.max_preemptions_per_step

    @rule(num=st.integers(2, 9))
    def steps(self, num):
        for _ in range(num):
            self.step()

    @precondition(lambda self: self.bench.jobs)
    @rule(data=st.data())
    def advance_job(self, data):
        self.bench.advance_job(data.draw(st.integers(0, len(self.bench.jobs) - 1)))

    @precondition(lambda self: self.bench.jobs)
    @rule()
    def finish_jobs(self):
        self.bench.finish_jobs()

    @precondition(lambda self: any(event.finish is None for event in self.bench.events.values()))
    @rule(data=st.data())
    def abort(self, data):
        living = [name for name, event in self.bench.events.items() if event.finish is None]
        name = data.draw(st.sampled_from(living))
        self.touched_aborts.add(name)
        self.bench.engine.abort(name)

    @rule(seconds=st.sampled_from([0.01, 0.2, 1.0, 3.0]))
    def wait(self, seconds):
        self.bench.clock.now += seconds

    @rule()
    def rest(self):
        """All that is under way ends, and whoever is idle may go."""
        for _ in range(3):
            self.bench.finish_jobs()
            self.step()
            self.bench.clock.now += 2.0

    @rule(fault=st.sampled_from(["is_failing", "is_refusing", "attached"]))
    def toggle(self, fault):
        setattr(self.tiers, fault, not getattr(self.tiers, fault))

    @precondition(lambda self: self.tiers.ram)
    @rule(data=st.data(), change=st.sampled_from(["corrupt", "evict", "to_pool"]))
    def change_below(self, data, change):
        address = data.draw(st.sampled_from(sorted(self.tiers.ram)))
        if change == "corrupt":
            self.tiers.corrupt.symmetric_difference_update({address})
        elif change == "evict":
            del self.tiers.ram[address]
        else:
            self.tiers.pool[address] = self.tiers.ram.pop(address)

    @rule(keeps_ram=st.booleans())
    def attach_anew(self, keeps_ram):
        self.tiers.attach_anew(keeps_ram)

    @rule()
    def report(self):
        self.bench.engine.report_digests([DigestRow(bytes([len(self.bench.events) % 8]) * 16, BLOCK_TOKENS, bytes(32))])
        self.bench.engine._below.reporter.flush()

    @invariant()
    def all_holds(self):
        if hasattr(self, "bench"):
            self.bench.engine.check_integrity()

    def teardown(self):
        if not hasattr(self, "bench"):
            return
        with contextlib.ExitStack() as undo:
            undo.callback(self.patches.undo)
            self.end_well()

    def end_well(self):
        self.tiers.is_failing = False
        self.bench.run()
        for name, event in self.bench.events.items():
            if event.finish == "abort":
                assert name in self.touched_aborts
            else:
                self.bench.assert_right(name)
        self.bench.assert_baseline()
        assert self.bench.engine._below.reporter.flush()
        self.bench.engine._below.reporter.flush()
        assert self.tiers.told == {block.address for block in self.bench.engine._residency.table}
        self.park_all()

    def park_all(self):
        """With time and tiers that work, every session leaves, and all of it lies below."""
        if self.bench.idle_seconds > 10 or not self.settings.max_store_blocks:
            return
        self.tiers.attached, self.tiers.is_refusing = True, False
        addresses = {block.address for block in self.bench.engine._residency.table}
        for _ in range(60):
            self.bench.clock.now += 17
            self.bench.step()
            self.bench.finish_jobs()
        self.bench.step()
        assert self.bench.engine.stats().num_cached == 0
        assert addresses <= {*self.tiers.ram, *self.tiers.pool}


AnyOrder.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestE21AnyOrder = AnyOrder.TestCase
