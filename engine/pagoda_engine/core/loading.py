"""Loads from the tiers below, into pages that their request already holds; meanwhile the request may compute.

    engine thread                     tier thread (load_run.py)                          engine thread
    start ──submit──►  lookup ► weigh ► load (sink: copy_in) ► landed, one by one ──►  adopt: publish what was verified

Rules:
- The job holds the pages that the tier thread may write until it is done with them: whoever aborts, preempts or gives
  up meanwhile only lets go of its own hold. Nobody reuses a page that somebody may still write.
- A page has one writer: the engine computes below the landing's floor only, and the job lets go of those pages.
- Only blocks the client has verified count. All others are computed.
- A request waits for a tenth of what computing would take at most, whatever the tier does (`weigh_loads`).
"""

import math

from pagoda_engine.core.landing import Landing
from pagoda_engine.core.load_job import STUCK_SECONDS, Leg, LoadJob
from pagoda_engine.core.load_run import LoadRun
from pagoda_engine.core.prefix import Block
from pagoda_engine.core.prices import Prices
from pagoda_engine.core.request import Request
from pagoda_engine.core.residency import Residency
from pagoda_engine.core.settings import EngineSettings
from pagoda_engine.core.throughput import Throughput
from pagoda_engine.core.weighing import SERIAL_SHARE, RaceState, chunk_blocks, is_useless
from pagoda_engine.core.workers import Outage, TierAccess, reason_of

_MIN_LOOKUP_SECONDS = 0.05
_PATIENCE_RACING = 2.0  # times what computing would take: then a race is over in any case
_BLIND_SHARE = 0.05  # of what is left: computed in one step while nobody knows yet what lies below
_LOOK_SECONDS = 0.005  # between two looks at a race that is as good as won
_MIN_CHUNK_TOKENS = 32  # fewer in a step cost almost as much


class Loader:
    """Starts, follows and finishes loads. All but what it submits is for the engine's thread."""

    def __init__(
        self,
        access: TierAccess,
        residency: Residency,
        settings: EngineSettings,
        throughput: Throughput,
    ) -> None:
        self.jobs: set[LoadJob] = set()  # in flight, also those whose request is gone
        self.prices = Prices(access.clock)
        self._access = access
        self._residency = residency
        self._settings = settings
        self._throughput = throughput
        self._block_tokens = access.runner.facts.block_tokens
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

    def seconds_per_token(self, tier: str) -> float:
        """Return what loading from `tier` has cost lately; 0 while unknown."""
        return self.prices.block_seconds(tier) / self._block_tokens

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
            pages={index: request.pages[index] for index in range(first, stop)},
            compute=self._throughput.price(),
            started_at=self._access.clock(),
            lookup_seconds=min(
                longest, max(_MIN_LOOKUP_SECONDS, SERIAL_SHARE * (longest if seconds is None else seconds))
            ),
            load_seconds=max(self._settings.min_load_seconds, _PATIENCE_RACING * (seconds or 0.0)),
            wait_until=0.0,
            landing=Landing(first),
        )
        job.wait_until = job.started_at + job.lookup_patience() if self._settings.weigh_loads else job.give_up_at
        for page in job.pages.values():
            self._residency.table.hold(page)
        request.load = job
        self.jobs.add(job)
        self._access.workers.submit(lambda: self._run(job))
        return True

    def adopt(self, request: Request) -> tuple[Block | None, str] | None:
        """Take over the request's next block if it has landed: (the block if it is new here, its source), else None.

        The request moves by one block. A block whose address is taken by other tokens ends the load.
        """
        job, index = request.load, len(request.blocks)
        if job is None or (source := job.landing.source_of(index)) is None:
            return None
        page = request.pages[index]
        if (block := self._residency.publish_next(request, page)) is None:
            self.detach(request)
            return None
        request.num_computed += request.block_tokens
        job.landing.take(index)
        self._yield_pages(job)
        return (block if block.page == page else None), source

    def passed(self, request: Request) -> None:
        """The request has got its blocks so far from elsewhere: they are not wanted any more."""
        if (job := request.load) is not None and request.blocks:
            job.landing.seize(len(request.blocks) - 1)
            self._yield_pages(job)

    def review(self, request: Request) -> str | None:
        """Look how the request's load is doing: it may end here, with the reason returned, or be waited for no more."""
        job, now = request.load, self._access.clock()
        assert job is not None
        position = request.num_computed // request.block_tokens
        job.stuck_since = None if job.landing.claimed != position else job.stuck_since
        if job.is_finished and job.landing.lowest(position) is None:
            request.load = None
            return None
        if position >= job.stop:
            job.verdict = job.verdict or "overtaken"
            self.detach(request)
            return None
        if not self._settings.weigh_loads and now >= job.give_up_at:
            job.is_counted = True  # the tier thread may never say so
            self.detach(request)
            return "given_up"
        job.look_at = job.wait_until
        job.is_awaited = not job.is_finished and not job.is_cancelled and now < job.wait_until
        if not job.is_awaited:
            self._limit(job, position)
        return None

    def _limit(self, job: LoadJob, position: int) -> None:
        """Set up to where the request computes in the next step, beside its load: never over what has landed.

        A load that will bring nothing any more is cancelled here; one that will soon have brought all is waited for.
        """
        landed, leg = job.landing.lowest(position), job.leg
        job.compute_stop = None if landed is None else landed * job.block_tokens
        top = landed if landed is not None else job.stop if leg is None else leg.stop
        if job.is_finished or job.is_cancelled or top <= position:
            return
        num_blocks = self._chunk(job, leg, position, top)
        if num_blocks:
            job.compute_stop = (position + min(num_blocks, top - position)) * job.block_tokens
        else:
            job.is_awaited, job.look_at = True, self._access.clock() + _LOOK_SECONDS

    def _chunk(self, job: LoadJob, leg: Leg | None, position: int, top: int) -> int:
        """Return how many blocks to compute next of those between `position` and `top`; 0: wait instead."""
        min_blocks = math.ceil(_MIN_CHUNK_TOKENS / job.block_tokens)
        if leg is None:
            return max(min_blocks, math.ceil(_BLIND_SHARE * (top - position)))
        if job.compute is None or not leg.is_race:
            return min_blocks
        race = RaceState(
            num_blocks=top - position,
            compute_block_seconds=sum(job.compute_seconds(position, top)) / (top - position),
            load=leg.live_price(),
            elapsed_seconds=leg.silent_seconds(self._access.clock()),
            has_landed=bool(leg.arrivals),
        )
        num_blocks = chunk_blocks(race, min_blocks)
        if num_blocks and is_useless(race):
            job.verdict, job.is_cancelled = "slower", True
            return top - position
        return num_blocks

    def reserve(self, request: Request, stop: int) -> int:
        """The request is to compute its tokens up to `stop`: keep its load off them; return up to where it may.

        That is where it stands if the tier thread is just writing its next block.
        """
        job, size = request.load, request.block_tokens
        position, wanted = -(-request.num_computed // size), -(-stop // size)
        if job is None or wanted <= position:
            return stop
        allowed = job.landing.reserve(position, wanted)
        self._yield_pages(job)
        if allowed * size == request.num_computed and self._is_stuck(job, position) and self._swap(request, position):
            job.landing.seize(position)
            allowed = position + 1
        return min(stop, allowed * size)

    def detach(self, request: Request) -> None:
        """Let the request go on without its load; the pages stay with the job until the tier thread is done."""
        job = request.load
        assert job is not None
        job.is_cancelled = True
        job.parent = request.blocks[-1] if request.blocks else None
        request.load = None
        self._residency.cut(request, max(len(request.blocks), min(job.landing.floor, len(request.pages))))

    def finish(self, job: LoadJob) -> list[tuple[Block, str]]:
        """The tier thread is done with a job; return the blocks that are new here for a request that is gone."""
        self.jobs.remove(job)
        job.is_finished = True
        added = [] if job.request.load is job else self._leave_in_table(job)
        for index in sorted(job.pages, reverse=True):
            self._residency.table.release(job.pages.pop(index))
        return added

    def _yield_pages(self, job: LoadJob) -> None:
        """Let go of the pages that the tier thread will not write any more."""
        for index in [index for index in job.pages if index < job.landing.floor and index != job.landing.claimed]:
            self._residency.table.release(job.pages.pop(index))

    def _is_stuck(self, job: LoadJob, position: int) -> bool:
        """Whether the tier thread has been writing this block for too long."""
        now = self._access.clock()
        if job.stuck_since is None:
            job.stuck_since = now
        return job.landing.claimed == position and now - job.stuck_since >= STUCK_SECONDS

    def _swap(self, request: Request, position: int) -> bool:
        """Give the request another page for a block, if there is one."""
        pages = self._residency.table.take(1)
        if pages is None:
            return False
        self._residency.table.release(request.pages[position])
        request.pages[position] = pages[0]
        return True

    def _leave_in_table(self, job: LoadJob) -> list[tuple[Block, str]]:
        """Nobody waits any more, but what was read is good: keep it while its chain is there."""
        parent, added = job.parent, []
        index = 0 if parent is None else parent.index + 1
        while index in job.pages and (source := job.landing.source_of(index)) is not None:
            address, page = job.addresses[index], job.pages[index]
            root, tokens = job.request.root_of(index), job.blocks[index - job.first]
            parent = self._residency.table.publish(address, root, parent, tokens, page)
            if parent is None:
                break
            parent.tenant_tag = job.request.tag_of(index)
            self._residency.claims.fulfil(address)
            if parent.page == page:
                added.append((parent, source))
            index += 1
        return added

    def _run(self, job: LoadJob) -> None:
        """The tier thread's part; whatever happens, the engine hears of the end."""
        try:
            job.reason = LoadRun(job, self._access, self._settings, self.prices).attempt()
            self._outage.worked()
        except Exception as error:  # noqa: BLE001 - whatever a tier does, it is never more than a miss
            job.reason = reason_of(error)
            self._outage.failed(error)
        finally:
            job.is_over = True
            self._access.post(job)
