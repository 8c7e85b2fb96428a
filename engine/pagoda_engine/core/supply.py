"""Where a request's next block comes from, decided at each block boundary of what it still has to get through:

    the device has it ─► adopt │ an earlier request is at it ─► follow │ below may have it ─► load │ else compute

Rules: waiting costs no budget and is bounded (by the leader's progress, by the load's deadlines); below is asked once
for each block; a block that a request loads or computes is claimed, so that later ones can follow.
"""

from collections.abc import Callable

from pagoda_engine.core.accounting import DEVICE
from pagoda_engine.core.instruments import Instruments
from pagoda_engine.core.loading import Loader, LoadJob
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
        self._residency = residency
        self._loader = loader
        self._settings = settings
        self._instruments = instruments
        self._clock = clock

    def advance(self, request: Request) -> None:
        """Take what is there. Afterwards the request is blocked, or its next token is to be computed."""
        request.leader = None
        if request.load is not None and not self._give_up_late_load(request):
            return
        self._adopt_present(request)
        if not _is_at_reusable(request):
            return
        address = request.address(len(request.blocks))
        oldest_progress = self._clock() - self._settings.follow_seconds
        request.leader = self._residency.claims.leader(request, address, oldest_progress)
        if request.leader is None:
            self._claim(request, oldest_progress)
            self._ask_below(request)

    def supplied(self, request: Request, num_tokens: int, source: str) -> None:
        """Note that the last `num_tokens` computed or found tokens came from `source`."""
        request.progressed_at = self._clock()
        num_replayed = request.ledger.record(request.num_computed - num_tokens, request.num_computed, source)
        if num_replayed:
            self._instruments.replayed_tokens.add(num_replayed, cause="preemption", source=source)

    def loaded(self, job: LoadJob) -> list[tuple[Block, str]]:
        """Take over what a load has brought; return the blocks new on the device and where they came from."""
        assert self._loader is not None
        if job.reason is not None:
            self._instruments.loads_skipped.add(1, reason=job.reason)
        request, was_awaited = job.request, job.request.load is job
        added = self._loader.finish(job)
        if was_awaited:
            num_blocks = len(request.blocks) - job.first
            request.num_computed -= num_blocks * request.block_tokens
            for source in job.sources[:num_blocks]:
                request.num_computed += request.block_tokens
                self.supplied(request, request.block_tokens, source)
        return [(block, job.sources[block.index - job.first]) for block in added]

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
        block = None
        while _is_at_reusable(request) and (found := self._residency.find_next(request)) is not None:
            block = found
            self._residency.adopt(request, block)
            request.num_computed += request.block_tokens
            self.supplied(request, request.block_tokens, DEVICE)
        if block is not None:
            self.on_touched(block.address)

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

    def _give_up_late_load(self, request: Request) -> bool:
        assert request.load is not None
        assert self._loader is not None
        if self._clock() < request.load.give_up_at:
            return False
        self._loader.detach(request)
        self._instruments.loads_skipped.add(1, reason="given_up")
        return True


def _is_at_reusable(request: Request) -> bool:
    """Whether it stands at the start of a block that it may find instead of computing."""
    num_blocks = len(request.blocks)
    is_at_boundary = request.num_computed == num_blocks * request.block_tokens
    return is_at_boundary and not request.is_private and num_blocks < request.num_reusable
