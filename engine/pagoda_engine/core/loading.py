"""Loads from the tiers below, into pages that their request already holds.

    engine thread          tier thread                                engine thread
    start ──submit──►  lookup ► weigh ► load (sink: copy_in) ──event──► finish: publish what was verified

Rules:
- The job holds its pages itself until the tier thread is done with them: whoever aborts, preempts or gives up meanwhile
  only lets go of its own hold. Nobody reuses a page that somebody may still write.
- Only blocks the client has verified, contiguous from the first, count. All others are computed.
- A load is bounded by what computing would take; it costs a deadline at most, whatever the tier does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pagoda_engine.core.prefix import Block
from pagoda_engine.core.request import Request
from pagoda_engine.core.residency import Residency
from pagoda_engine.core.settings import EngineSettings
from pagoda_engine.core.throughput import Throughput
from pagoda_engine.core.tiers import Part
from pagoda_engine.core.workers import Outage, TierAccess, reason_of

# The share of the recompute time that may pass before the first block, or on a lookup.
_PATIENCE = 0.1
_MIN_LOOKUP_SECONDS = 0.05
_GRACE_SECONDS = 0.5  # past its deadlines a client's call is given up


@dataclass(eq=False)
class LoadJob:
    """One load. The fields below the line are written by the tier thread, then read by the engine's."""

    request: Request  # still waits for it as long as its `load` is this job
    addresses: list[bytes]  # of the whole chain up to `stop`
    first: int
    stop: int
    blocks: list[tuple[int, ...]]  # tokens of the blocks [first, stop)
    parent: Block | None  # the block before `first`
    pages: list[int]  # of the blocks [first, stop); held by this job
    recompute_seconds: float | None  # for all of it; None while unknown
    started_at: float
    lookup_seconds: float
    load_seconds: float
    is_cancelled: bool = False
    # ---
    sources: list[str] = field(default_factory=list)
    reason: str | None = None
    num_copied: int = 0

    @property
    def deadline(self) -> float:
        """When the tier thread is done even if every call takes all its time."""
        return self.started_at + self.lookup_seconds + self.load_seconds

    @property
    def give_up_at(self) -> float:
        """When its request goes on without it."""
        return self.deadline + _GRACE_SECONDS

    def compute_seconds(self, num_blocks: int) -> float | None:
        """What computing the first `num_blocks` of it would take."""
        if self.recompute_seconds is None:
            return None
        return self.recompute_seconds * num_blocks / len(self.pages)


class Loader:
    """Starts and finishes loads. `start`, `detach` and `finish` are for the engine's thread."""

    def __init__(
        self,
        access: TierAccess,
        residency: Residency,
        settings: EngineSettings,
        throughput: Throughput,
    ) -> None:
        self.jobs: set[LoadJob] = set()  # in flight, also those whose request is gone
        self._access = access
        self._residency = residency
        self._settings = settings
        self._throughput = throughput
        self._outage = Outage("a load")

    def reason_to_skip(self, num_blocks: int, num_earlier_tokens: int, block_tokens: int) -> str | None:
        """Return why a load of so many blocks should not even be tried, or None."""
        if not self._access.client.attached:
            return "detached"
        if not self._access.client.has_ram:
            return "ram_off"
        seconds = self._throughput.seconds(num_blocks * block_tokens, num_earlier_tokens)
        if self._settings.weigh_loads and seconds is not None and seconds < self._settings.load_overhead_seconds:
            return "short"
        return None

    def start(self, request: Request, stop: int) -> bool:
        """Load the blocks after the request's last one up to `stop`; False if there are no pages for them."""
        first = len(request.blocks)
        if not self._residency.grow(request, stop):
            return False
        request.address(stop - 1)
        seconds = self._throughput.seconds((stop - first) * request.block_tokens, request.num_computed)
        longest = self._settings.max_lookup_seconds
        job = LoadJob(
            request=request,
            addresses=request.addresses[:stop],
            first=first,
            stop=stop,
            blocks=[request.block(index) for index in range(first, stop)],
            parent=request.blocks[-1] if request.blocks else None,
            pages=request.pages[first:stop],
            recompute_seconds=seconds,
            started_at=self._access.clock(),
            lookup_seconds=min(
                longest, max(_MIN_LOOKUP_SECONDS, _PATIENCE * (longest if seconds is None else seconds))
            ),
            load_seconds=max(self._settings.min_load_seconds, seconds or 0.0),
        )
        for page in job.pages:
            self._residency.table.hold(page)
        request.load = job
        self.jobs.add(job)
        self._access.workers.submit(lambda: self._run(job))
        return True

    def detach(self, request: Request) -> None:
        """Let the request go on without its load; the pages stay with the job until the tier thread is done."""
        assert request.load is not None
        request.load.is_cancelled = True
        request.load = None
        self._residency.cut(request, len(request.blocks))

    def finish(self, job: LoadJob) -> list[Block]:
        """Take over what a finished job has loaded, for its request if that still waits; return the blocks new here."""
        self.jobs.remove(job)
        is_awaited = job.request.load is job
        added = self._give_to(job.request, job) if is_awaited else self._leave_in_table(job)
        for page in reversed(job.pages):
            self._residency.table.release(page)
        return added

    def _give_to(self, request: Request, job: LoadJob) -> list[Block]:
        request.load = None
        added = []
        for page in job.pages[: len(job.sources)]:
            if (block := self._residency.publish_next(request, page)) is None:
                break
            request.num_computed += request.block_tokens
            if block.page == page:
                added.append(block)
        return added

    def _leave_in_table(self, job: LoadJob) -> list[Block]:
        """Nobody waits any more, but what was read is good: keep it while its chain is there."""
        parent, added = job.parent, []
        for offset in range(len(job.sources)):
            address, page = job.addresses[job.first + offset], job.pages[offset]
            root = job.request.root_of(job.first + offset)
            parent = self._residency.table.publish(address, root, parent, job.blocks[offset], page)
            if parent is None:
                break
            parent.tenant_tag = job.request.tag_of(job.first + offset)
            self._residency.claims.fulfil(address)
            if parent.page == page:
                added.append(parent)
        return added

    def _run(self, job: LoadJob) -> None:
        """The tier thread's part; whatever happens, the engine hears of the end."""
        try:
            job.reason = self._attempt(job)
            self._outage.worked()
        except Exception as error:  # noqa: BLE001 - whatever a tier does, it is never more than a miss
            job.reason, job.sources = reason_of(error), []
            self._outage.failed(error)
        finally:
            self._access.post(job)

    def _attempt(self, job: LoadJob) -> str | None:
        if job.is_cancelled:
            return "cancelled"
        if (seconds_left := job.deadline - self._access.clock()) <= 0:  # all that time in the queue
            return "deadline"
        parts = self._access.client.lookup(job.addresses[job.first :], min(job.lookup_seconds, seconds_left))
        num_present, num_blocks = _num_contiguous(parts), self._num_worth_loading(job, parts)
        if not num_blocks:
            return "slower" if num_present else "absent"

        def sink(position: int, payload: memoryview) -> None:
            self._access.runner.copy_in(job.pages[position - job.first], payload)
            job.num_copied += 1

        begun_at, stop = self._access.clock(), job.first + num_blocks
        result = self._access.client.load(
            job.request.new.root,
            job.addresses[:stop],
            job.first,
            stop,
            sink,
            min(job.load_seconds, max(0.0, job.deadline - begun_at)),
            lambda: job.is_cancelled or self._is_too_slow(job, num_blocks, self._access.clock() - begun_at),
        )
        job.sources = list(result.sources[:num_blocks])
        if len(job.sources) < num_blocks:
            return result.reason or "short"
        return (
            None if len(job.sources) == job.stop - job.first else ("slower" if num_present > num_blocks else "absent")
        )

    def _num_worth_loading(self, job: LoadJob, parts: Sequence[Part]) -> int:
        """Blocks to load: up to the end of that part where the most time is saved. (Loading is concave: the best
        point is always an end of a part.)"""
        best_gain, best, seconds, num_blocks = 0.0, 0, 0.0, 0
        for part in _contiguous(parts):
            seconds += part.seconds
            num_blocks += part.count
            compute_seconds = job.compute_seconds(num_blocks)
            if compute_seconds is None or not self._settings.weigh_loads:
                best = num_blocks
            elif compute_seconds - seconds > best_gain:
                best_gain, best = compute_seconds - seconds, num_blocks
        return min(best, len(job.pages))

    def _is_too_slow(self, job: LoadJob, num_blocks: int, elapsed: float) -> bool:
        """Whether computing is the better choice by now: no first block for long, or a projected end too late."""
        compute_seconds = job.compute_seconds(num_blocks)
        if not self._settings.weigh_loads or compute_seconds is None:
            return False
        if not job.num_copied:
            return elapsed > max(self._settings.min_load_seconds, _PATIENCE * compute_seconds)
        projected = elapsed * num_blocks / job.num_copied
        return projected > max(self._settings.min_load_seconds, compute_seconds)


def _contiguous(parts: Sequence[Part]) -> list[Part]:
    run, end = [], 0
    for part in parts:
        if part.first != end:
            break
        run.append(part)
        end += part.count
    return run


def _num_contiguous(parts: Sequence[Part]) -> int:
    return sum(part.count for part in _contiguous(parts))
