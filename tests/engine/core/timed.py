"""An engine whose steps and whose tiers take virtual time, side by side: what a load costs a request can be read off.

Computing takes `TOKEN_SECONDS` a token. While a step computes, and while the engine waits, time passes in small ticks,
and at each of them every tier job moves as far as the time allows.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pagoda_engine.core.settings import EngineSettings
from pagoda_engine.core.tiers import Part
from tests.engine.core.bench import SETTINGS, Bench
from tests.engine.core.fake_tiers import FakeTiers
from tests.engine.core.oracle import BLOCK_TOKENS

TOKEN_SECONDS = 0.01
BLOCK_SECONDS = TOKEN_SECONDS * BLOCK_TOKENS  # to compute one
TICK_SECONDS = 0.005
NUM_BLOCKS = 150
NUM_TOKENS = NUM_BLOCKS * BLOCK_TOKENS + 1
PROMPT = [(7 * index) % 41 for index in range(NUM_TOKENS)]
NEVER = NUM_TOKENS * TOKEN_SECONDS  # seconds to compute it

TIMED = replace(SETTINGS, max_model_tokens=2 * NUM_TOKENS, max_batch_tokens=64, weigh_loads=True)


@dataclass
class Pace:
    """How a tier behaves. `block_seconds` None: it never answers."""

    latency_seconds: float = 0.0
    block_seconds: float | None = 0.001
    said_seconds: float = 0.001  # what the sidecar believes a block takes


class TimedTiers(FakeTiers):
    """Fake tiers that take their time; `told` is what a lookup says, `paces` how it really is."""

    def __init__(self) -> None:
        super().__init__()
        self.clock: Callable[[], float] = lambda: 0.0
        self.paces = {"ram": Pace(), "pool": Pace()}
        self.lookup_seconds: float | None = 0.002
        self.contention = 1.0  # times slower while the engine computes
        self.is_computing = False
        self._last_address = b""

    def lookup(self, addresses: Sequence[bytes], timeout_seconds: float) -> list[Part]:
        self._sleep(timeout_seconds if self.lookup_seconds is None else min(self.lookup_seconds, timeout_seconds))
        parts = super().lookup(addresses, timeout_seconds)
        return [replace(part, seconds=part.count * self.paces[part.tier].said_seconds) for part in parts]

    def load(self, root, addresses, first, stop, sink, timeout_seconds, cancelled, **order):  # type: ignore[no-untyped-def,override]
        is_back, floor = order.get("back_first", False), order.get("floor")
        end, seen, due = self.clock() + timeout_seconds, set(), self.clock()
        following = stop - 1 if is_back else first

        def is_cancelled() -> bool:
            """Called before each block: let its time pass, unless the caller loses interest meanwhile."""
            nonlocal following, due
            pace = self.paces["ram" if addresses[following] in self.ram else "pool"]
            slower = self.contention if self.is_computing else 1.0
            due += math.inf if pace.block_seconds is None else slower * pace.block_seconds
            due += 0.0 if id(pace) in seen else pace.latency_seconds
            seen.add(id(pace))
            while self.clock() < due:
                if cancelled() or self.clock() >= end or (floor is not None and following < floor()):
                    return True
                self.checkpoint()
            following += -1 if is_back else 1
            return bool(cancelled())

        return super().load(root, addresses, first, stop, sink, timeout_seconds, is_cancelled, **order)

    def _step(self) -> None:
        """No moment of its own: what takes time sleeps."""

    def _sleep(self, seconds: float) -> None:
        end = self.clock() + seconds
        while self.clock() < end:
            self.checkpoint()


class TimedBench(Bench):
    """A bench whose tier holds `PROMPT`, or what `fill` puts there."""

    def __init__(self, settings: EngineSettings = TIMED, tiers: TimedTiers | None = None, num_pages: int = 400) -> None:
        self.timed = tiers or TimedTiers()
        super().__init__(num_pages, settings, self.timed)
        self.timed.clock = self.clock
        self.runner.before_run = lambda chunks: self.compute(sum(len(chunk.tokens) for chunk in chunks))

    def compute(self, num_tokens: int) -> None:
        """Let the time of a step pass."""
        self.timed.is_computing = True
        self.pass_time(num_tokens * TOKEN_SECONDS)
        self.timed.is_computing = False

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and every tier job move meanwhile."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now = min(end, self.clock.now + TICK_SECONDS)
            self.move_jobs()

    def move_jobs(self) -> None:
        for job in list(self.jobs):
            job.advance()
            if job.is_done:
                self.jobs.remove(job)

    def learn_speed(self) -> None:
        """Compute something nobody knows, so that the engine knows its own speed."""
        self.ask([45] * 200)

    def ask(self, prompt: Sequence[int] = PROMPT, **other: object) -> float:
        """Submit, run to the end, check everything; return the seconds to the first token."""
        name = self.submit(prompt, **other)
        return self.finish(name)

    def finish(self, name: str) -> float:
        begun_at = self.clock.now
        first_at = None
        while self.events[name].finish is None:
            if not self.engine.step():
                self.pass_time(TICK_SECONDS)
            self.engine.check_integrity()
            if first_at is None and self.events[name].tokens:
                first_at = self.clock.now
            assert self.clock.now - begun_at < 100 * NEVER, "no end"
        self.assert_right(name)
        assert first_at is not None
        return first_at - begun_at

    def settle(self) -> None:
        """Let everything that is in flight end; nothing may be left."""
        for _ in range(1_000_000):
            if self.engine.is_idle:
                break
            self.engine.step()
            self.pass_time(TICK_SECONDS)
        self.assert_baseline()

    def forget(self) -> None:
        """Empty the device: whatever is asked next must come from below or be computed."""
        table = self.engine._residency.table
        pages = table.take(table.num_available)
        assert pages is not None
        for page in pages:
            table.release(page)


def filled(tier: str = "pool", num_in_ram: int = 0, settings: EngineSettings = TIMED) -> TimedBench:
    """A bench that knows its speed, whose device is empty and whose `tier` holds the prompt."""
    source = FakeTiers()
    writer = Bench(NUM_BLOCKS + 10, replace(SETTINGS, max_model_tokens=2 * NUM_TOKENS, max_batch_tokens=256), source)
    writer.complete(PROMPT)
    writer.run()
    bench = TimedBench(settings)
    bench.learn_speed()
    bench.settle()
    for record in source.records.values():
        place = bench.timed.ram if tier == "ram" or record.index < num_in_ram else bench.timed.pool
        place[record.address] = source.ram[record.address]
    for calls in (bench.timed.lookups, bench.timed.loads, bench.timed.orders, bench.timed.timeouts):
        calls.clear()
    return bench
