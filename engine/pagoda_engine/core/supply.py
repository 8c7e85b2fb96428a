"""Where a request's next block comes from, decided at each block boundary of what it still has to get through:

    the device has it ─► adopt │ an earlier request is at it ─► follow │ below may have it ─► load │ else compute

Rules: waiting costs no budget and is bounded (by the leader's progress, by a share of what computing would take); while
a load is raced the request computes; below is asked once for each block; a block that a request loads or computes is
claimed, so that later ones can follow.
"""

from collections.abc import Callable

from pagoda_engine.core.accounting import DEVICE
from pagoda_engine.core.instruments import Instruments
from pagoda_engine.core.load_job import LoadJob
from pagoda_engine.core.loading import Loader
from pagoda_engine.core.prefix import Block
from pagoda_engine.core.request import Request
from pagoda_engine.core.residency import Residency
from pagoda_engine.core.scheduler import Need
from pagoda_engine.core.settings import EngineSettings


class Supply:
    """Moves requests forward as far as it goes without computing."""

    def __init__(
        self,
        residency: Residency,
        loader: Loader | None,
        settings: EngineSettings,
        instruments: Instruments,
        clock: Callable[[], float],
    ) -> None:
        self.on_touched: Callable[[bytes], None] = lambda address: None
        self.on_loaded: Callable[[Block, str], None] = lambda block, source: None  # new on the device, from which tier
        self._residency = residency
        self._loader = loader
        self._settings = settings
        self._instruments = instruments
        self._clock = clock

    def advance(self, request: Request) -> None:
        """Take what is there. Afterwards the request is blocked, or its next token is to be computed."""
        request.leader = None
        self._adopt_present(request)
        if request.load is not None:
            self._review_load(request)
        if not _is_at_reusable(request) or request.is_blocked:
            return
        address = request.address(len(request.blocks))
        oldest_progress = self._clock() - self._settings.follow_seconds
        request.leader = self._residency.claims.leader(request, address, oldest_progress)
        if request.leader is None:
            self._claim(request, oldest_progress)
            if request.load is None:
                self._ask_below(request)

    def reserve(self, request: Request, stop: int) -> int:
        """It is to compute up to token `stop`: keep its load off that; return up to where it may."""
        return stop if self._loader is None else self._loader.reserve(request, stop)

    def supplied(self, request: Request, num_tokens: int, source: str) -> None:
        """Note that the last `num_tokens` computed or found tokens came from `source`."""
        request.progressed_at = self._clock()
        num_replayed = request.ledger.record(request.num_computed - num_tokens, request.num_computed, source)
        if num_replayed:
            self._instruments.replayed_tokens.add(num_replayed, cause="preemption", source=source)

    def loaded(self, job: LoadJob) -> None:
        """There is news of a load; when it is over, count how it ended."""
        assert self._loader is not None
        if not job.is_over or job not in self._loader.jobs:
            return
        for block, source in self._loader.finish(job):
            self.on_loaded(block, source)
        reason = job.verdict or job.reason
        if reason is not None and not job.is_counted:
            self._instruments.loads_skipped.add(1, reason=reason)

    def let_go(self, request: Request) -> None:
        """Take everything from a request that ends or is preempted."""
        request.leader = None
        request.asked_blocks = 0
        if request.load is not None:
            assert self._loader is not None
            self._loader.detach(request)
        self._residency.leave(request)

    def need(self, request: Request) -> Need:
        """The pages it still has to take for its tokens so far; what others hold or are at counts as theirs."""
        index, num_revived = len(request.blocks), 0
        while index < request.num_reusable and not request.is_private:
            address = request.address(index)
            owner = self._residency.claims.owner(address)
            if self._residency.table.is_present(address):
                num_revived += not self._residency.table.is_held(address)
            elif owner is None or owner.order >= request.order:
                break
            index += 1
        return Need(max(0, request.num_blocks - max(index, len(request.pages))), num_revived)

    def _adopt_present(self, request: Request) -> None:
        """Take what the device has, and what a load has brought."""
        touched = None
        while _is_at_reusable(request):
            block = self._residency.find_next(request)
            if block is not None:
                self._residency.adopt(request, block)
                request.num_computed += request.block_tokens
                touched, source = block.address, DEVICE
                if self._loader is not None:
                    self._loader.passed(request)
            elif self._loader is not None and (adopted := self._loader.adopt(request)) is not None:
                new, source = adopted
                if new is not None:
                    self.on_loaded(new, source)
            else:
                break
            self.supplied(request, request.block_tokens, source)
        if touched is not None:
            self.on_touched(touched)

    def _claim(self, request: Request, oldest_progress: float) -> None:
        """Undertake all full blocks from here on, up to where an earlier request has."""
        claims = self._residency.claims
        if claims.owner(request.address(len(request.blocks))) is request:
            return
        for index in range(len(request.blocks), len(request.tokens) // request.block_tokens):
            address = request.address(index)
            if claims.leader(request, address, oldest_progress) is not None:
                return
            claims.claim(request, address)

    def _ask_below(self, request: Request) -> None:
        first, stop = len(request.blocks), request.num_reusable
        if first < request.asked_blocks or self._loader is None:
            return
        request.asked_blocks = stop
        reason = self._loader.reason_to_skip(stop - first, request.num_computed, request.block_tokens)
        if reason is None and not self._loader.start(request, stop):
            reason = "memory"
        if reason is not None:
            self._instruments.loads_skipped.add(1, reason=reason)

    def _review_load(self, request: Request) -> None:
        assert self._loader is not None
        reason = self._loader.review(request)
        if reason is not None:
            self._instruments.loads_skipped.add(1, reason=reason)


def _is_at_reusable(request: Request) -> bool:
    """Whether it stands at the start of a block that it may find instead of computing."""
    num_blocks = len(request.blocks)
    is_at_boundary = request.num_computed == num_blocks * request.block_tokens
    return is_at_boundary and not request.is_private and num_blocks < request.num_reusable
