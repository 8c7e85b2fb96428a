"""The tier thread's part of a load: ask what is there, weigh, fetch.

    lookup ──► weigh ──► serial leg, front first ──► race legs, back first ──► over
                              └── its request would wait too long: it computes, and the rest is raced ──┘

Rules: whatever happens in here is a miss and a reason, and the engine hears of the end. Nothing is written but through
the landing.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from pagoda_engine.core.load_job import Leg, LoadJob
from pagoda_engine.core.prices import Prices
from pagoda_engine.core.settings import EngineSettings
from pagoda_engine.core.tiers import LoadResult, Part
from pagoda_engine.core.weighing import Stretch, race_span, weigh
from pagoda_engine.core.workers import TierAccess

Stretches = list[tuple[str, Stretch]]


class LoadRun:
    """Runs one job."""

    def __init__(self, job: LoadJob, access: TierAccess, settings: EngineSettings, prices: Prices) -> None:
        self._job = job
        self._access = access
        self._settings = settings
        self._prices = prices

    def attempt(self) -> str | None:
        """Load; return why not all has come, if so.

        Raises:
            TierUnavailable: there is nobody to load from.
        """
        job = self._job
        if job.is_cancelled:
            return "cancelled"
        if (seconds_left := job.deadline - self._access.clock()) <= 0:  # all that time in the queue
            return "deadline"
        parts = self._access.client.lookup(job.addresses[job.first :], min(job.lookup_seconds, seconds_left))
        present = _contiguous(parts)
        num_present = sum(part.count for part in present)
        if not num_present:
            return "absent"
        if job.is_cancelled:
            return "cancelled"
        run = [(part.tier, self._prices.stretch(part)) for part in present]
        reason, is_complete = self._load(run)
        if is_complete and job.first + num_present < job.stop:
            return "absent"
        return reason

    def _load(self, run: Stretches) -> tuple[str | None, bool]:
        """Load what is worth it of `run`; return why something did not come, and whether all of `run` did."""
        job = self._job
        position = job.landing.floor  # its request may have begun to compute
        rest = _cut(run, position - job.first, job.stop - job.first)
        num_serial, seconds = self._weigh(rest)
        if num_serial:
            reason = self._serial(position, _cut(rest, 0, num_serial), seconds)
            if reason is not None:
                return reason, False
            assert job.leg is not None
            position += len(job.leg.arrivals)
        return self._race(run, position)

    def _weigh(self, run: Stretches) -> tuple[int, float]:
        """Return how many blocks to wait for, and about how long that will take."""
        job, num_blocks = self._job, sum(stretch.num_blocks for _, stretch in run)
        if job.compute is None or not self._settings.weigh_loads:
            return num_blocks, sum(stretch.price.seconds(stretch.num_blocks) for _, stretch in run)
        floor = job.landing.floor
        plan = weigh([stretch for _, stretch in run], job.compute_seconds(floor, floor + num_blocks))
        end = 0
        for tier, stretch in run:
            end += stretch.num_blocks
            self._prices.judge(tier, is_slow=end > plan.num_serial)
        return plan.num_serial, plan.serial_seconds

    def _serial(self, first: int, run: Stretches, expected_seconds: float) -> str | None:
        """Load while the request waits; None: all has come, or it does not wait any more."""
        job = self._job
        leg = self._leg(first, run, is_race=False)
        if self._settings.weigh_loads:
            job.wait_for_load(leg.started_at, expected_seconds, self._settings.min_load_seconds)
        else:
            job.wait_until = job.give_up_at

        def has_overtaken() -> bool:
            return job.landing.floor > leg.first + len(leg.arrivals)

        result = self._follow(leg, lambda: job.is_cancelled or has_overtaken())
        if has_overtaken() and not job.is_cancelled:
            self._prices.judge(leg.next_tier, is_slow=True)
            return None
        return result.reason

    def _race(self, run: Stretches, position: int) -> tuple[str | None, bool]:
        """Load from the end down to `position` while the request computes, leg by leg, none longer than is likely."""
        job = self._job
        end = job.first + sum(stretch.num_blocks for _, stretch in run)
        is_first = True
        while (floor := max(position, job.landing.floor)) < end:
            if job.is_cancelled:
                return "cancelled", False
            rest = _cut(run, floor - job.first, end - job.first)
            first, stop = self._span(rest, floor, is_first)
            if first == stop:
                return ("slower" if is_first else "overtaken"), False
            is_first = False
            job.wait_until = 0.0  # from here on its request computes beside it
            leg = self._leg(first, _cut(run, first - job.first, stop - job.first), is_race=True)
            self._access.post(job)
            result = self._follow(leg, lambda: job.is_cancelled)
            if result.reason is not None or len(leg.arrivals) < stop - first:
                return result.reason or "overtaken", False
            end = first
        return (None, True) if end <= position else ("overtaken", False)

    def _span(self, rest: Stretches, floor: int, is_first: bool) -> tuple[int, int]:
        """Return the blocks to race for; none: both equal."""
        job, num_blocks = self._job, sum(stretch.num_blocks for _, stretch in rest)
        if job.compute is None:
            return floor, floor + num_blocks
        seconds = job.compute_seconds(floor, floor + num_blocks)
        first, stop = race_span([stretch for _, stretch in rest], seconds)
        if first == stop and is_first and self._prices.is_stale(rest[-1][0]):
            return floor + num_blocks - 1, floor + num_blocks  # it delays nobody to see how slow the tier is now
        return floor + first, floor + stop

    def _leg(self, first: int, run: Stretches, is_race: bool) -> Leg:
        leg = self._job.leg = Leg.over(first, run, is_race, self._access.clock())
        return leg

    def _follow(self, leg: Leg, is_cancelled: Callable[[], bool]) -> LoadResult:
        """Load a leg and learn from it what its tiers cost."""
        job, landing, clock = self._job, self._job.landing, self._access.clock

        def sink(position: int, payload: memoryview) -> None:
            if landing.claim(position):
                self._access.runner.copy_in(job.pages[position], payload)

        def arrived(position: int, source: str) -> None:
            counts = landing.arrived(position, source)
            leg.arrivals.append((clock(), position, source))
            self._prices.asked(leg.tiers[position - leg.first], -1)
            if counts and not leg.is_race:
                job.extend_wait(position)
            if job.stuck_since is not None:
                self._access.post(job)

        for tier in leg.tiers:
            self._prices.asked(tier, 1)
        try:
            return self._access.client.load(
                job.request.new.root,
                job.addresses[: leg.stop],
                leg.first,
                leg.stop,
                sink,
                max(0.0, job.deadline - leg.started_at),
                is_cancelled,
                back_first=leg.is_race,
                arrived=arrived,
                floor=(lambda: landing.floor) if leg.is_race else None,
            )
        finally:
            landing.let_go()
            self._learn(leg)

    def _learn(self, leg: Leg) -> None:
        came = {position for _, position, _ in leg.arrivals}
        for position in range(leg.first, leg.stop):
            if position not in came:
                self._prices.asked(leg.tiers[position - leg.first], -1)
        if not leg.arrivals:
            self._prices.record_nothing(leg.next_tier, self._access.clock() - leg.started_at)
            return
        before = leg.started_at
        firsts: dict[str, float] = {}
        gaps: dict[str, float] = {}
        numbers: dict[str, int] = {}
        for when, _, source in leg.arrivals:
            if source in firsts:
                gaps[source] += when - before
            else:
                firsts[source], gaps[source], numbers[source] = when - before, 0.0, 0
            numbers[source] += 1
            before = when
        for source, seconds in firsts.items():
            self._prices.record(source, seconds, gaps[source], numbers[source])


def _contiguous(parts: Sequence[Part]) -> list[Part]:
    run, end = [], 0
    for part in parts:
        if part.first != end:
            break
        run.append(part)
        end += part.count
    return run


def _cut(run: Stretches, first: int, stop: int) -> Stretches:
    """Return the blocks [first, stop) of `run`, counted from its own first."""
    pieces, start = [], 0
    for tier, stretch in run:
        low, high = max(first, start), min(stop, start + stretch.num_blocks)
        if low < high:
            pieces.append((tier, replace(stretch, num_blocks=high - low)))
        start += stretch.num_blocks
    return pieces
