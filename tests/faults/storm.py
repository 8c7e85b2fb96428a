"""Engines and faults at once, with calm in between: whatever happened, everything must be given back.

storm ──► calm: no fault, threads rest ──► leases and quarantine zero, free + cached = all ──► storm …
"""

import collections
import time
from collections.abc import Callable
from dataclasses import dataclass

from pagoda_sidecar.arena.layout import fixed_geometry
from tests.faults.mischief import Mischief
from tests.faults.universe import PAYLOAD_BYTES
from tests.faults.world import DISK_BYTES, RAM_BYTES, SETTLE_SECONDS, World, wait_until

STEP_SECONDS = 0.03
SETTLED = "leases and quarantine zero, free + cached = all, an engine attached"
STORM_SECONDS = 20.0
SIGHT_SECONDS = 60.0  # in which operations must have gone on


@dataclass
class Outcome:
    """What a storm did and found."""

    counts: "collections.Counter[str]"
    faults: "collections.Counter[str]"
    wrongs: list[str]
    num_calms: int
    seconds: float

    @property
    def num_operations(self) -> int:
        """Calls of engines, and faults done."""
        return self.counts["calls"] + self.faults.total()


class Storm:
    """Runs in one world."""

    def __init__(self, world: World, seed: str, progress: Callable[[Outcome], None] = lambda outcome: None) -> None:
        self._world = world
        self._mischief = Mischief(world, seed)
        self._progress = progress
        self._started = time.monotonic()
        self._num_calms = 0

    def run(self, num_operations: int, longest_seconds: float) -> Outcome:
        """Go on until so many operations are done or the time is over; end with a calm.

        Raises:
            AssertionError: something was not given back, or stands still.
        """
        self._mischief.begin()
        outcome = self._outcome()
        while not outcome.wrongs and outcome.num_operations < num_operations:
            left = self._started + longest_seconds - time.monotonic()
            if left <= 0:
                break
            self._rage(min(STORM_SECONDS, left), num_operations)
            self._settle()
            outcome = self._outcome()
            self._progress(outcome)
        self._world.end_engine(is_killed=False)
        return self._outcome()

    def _rage(self, seconds: float, num_operations: int) -> None:
        engine = self._world.engine
        assert engine is not None
        self._mischief.new_storm()
        engine.tell("go")
        end = time.monotonic() + seconds
        before, seen_at = self._world.counts()["calls"], time.monotonic()
        while time.monotonic() < end and not self._world.all_wrongs():
            self._mischief.step()
            self._weigh_disk()
            time.sleep(STEP_SECONDS)
            now = self._world.counts()["calls"]
            if now > before:
                before, seen_at = now, time.monotonic()
            assert time.monotonic() < seen_at + SIGHT_SECONDS, f"no call has ended for {SIGHT_SECONDS:.0f} s"
            if now >= num_operations:
                break
        self._mischief.calm()

    def _weigh_disk(self) -> None:
        """The disk tier's cap holds at every moment, whatever failed."""
        size = self._world.sidecar.disk_bytes()
        if size > DISK_BYTES:
            self._world.wrongs.append(f"the disk tier takes {size} bytes of {DISK_BYTES}")

    def _settle(self) -> None:
        """Hold the sidecar to its books while nobody asks for anything."""
        world = self._world
        assert world.engine is not None
        world.engine.pause()
        wait_until(lambda: self._is_settled(world.sidecar.metrics()), SETTLE_SECONDS, SETTLED)
        self._num_calms += 1

    def _is_settled(self, metrics: dict[str, float]) -> bool:
        sealed = metrics.get('pagoda_tier_blocks{state="sealed",tier="ram"}', -1.0)
        free = metrics.get('pagoda_tier_blocks{state="free",tier="ram"}', -1.0)
        return (
            metrics.get("pagoda_leases") == 0
            and metrics.get("pagoda_quarantined_slots") == 0
            and sealed + free == world_slots()
            and metrics.get("pagoda_tier_attached") == 1
        )

    def _outcome(self) -> Outcome:
        faults: collections.Counter[str] = collections.Counter()
        for proxy in self._world.proxies:
            faults += proxy.counts
        faults += collections.Counter(self._world.sidecar.steering.done())
        faults += collections.Counter({f"did.{name}": number for name, number in self._mischief.counts.items()})
        return Outcome(
            self._world.counts(), faults, self._world.all_wrongs(), self._num_calms, time.monotonic() - self._started
        )


def world_slots() -> int:
    """Slots of the world's arena."""
    return fixed_geometry(RAM_BYTES, PAYLOAD_BYTES).num_slots
