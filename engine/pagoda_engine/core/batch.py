"""The living requests and what happens to them in a step. All of it runs in the engine's thread.

Rules: a request ends in one place (`end`), is preempted in one place, and both give back all it holds; a token becomes
an event only after its step has completed and its blocks were published.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pagoda_engine.core import scheduler
from pagoda_engine.core.accounting import COMPUTE
from pagoda_engine.core.ceiling import HitCeiling
from pagoda_engine.core.instruments import Instruments
from pagoda_engine.core.request import Request, TokenEvent
from pagoda_engine.core.residency import Residency
from pagoda_engine.core.roster import Roster
from pagoda_engine.core.settings import EngineSettings
from pagoda_engine.core.storing import Storer
from pagoda_engine.core.supply import Supply
from pagoda_engine.core.workload import Workload
from pagoda_engine.model.interface import SequenceChunk

_log = logging.getLogger(__name__)

_MAX_WAIT_SECONDS = 1.0


@dataclass(frozen=True)
class Work:
    """The tokens [start, stop) of a request, in this step."""

    request: Request
    start: int
    stop: int

    @property
    def num_tokens(self) -> int:
        """Tokens to compute."""
        return self.stop - self.start

    def chunk(self) -> SequenceChunk:
        """The same for the model."""
        request = self.request
        pages = request.pages[: -(-self.stop // request.block_tokens)]
        sampling = request.new.sampling if self.stop == len(request.tokens) else None
        return SequenceChunk(request.tokens[self.start : self.stop], self.start, pages, sampling)


@dataclass(eq=False)
class Batch:
    """Admits, schedules, preempts, advances and ends requests."""

    roster: Roster
    residency: Residency
    supply: Supply
    storer: Storer | None
    workload: Workload
    ceiling: HitCeiling
    settings: EngineSettings
    limits: scheduler.Limits
    instruments: Instruments
    clock: Callable[[], float]
    on_end: Callable[[Request], None]
    on_preempted: Callable[[Request], None]  # while it holds its blocks still

    def schedule(self) -> list[Work]:
        """Choose the next step's work; every page it writes is taken when this returns."""
        for request in self.roster.running:
            self.supply.advance(request)
        self._admit()
        plan = scheduler.plan(self._candidates(), self.residency.table.num_available, self.limits)
        for request_id in plan.preempted:
            self._preempt(self._running(request_id))
        return [work for chunk in plan.chunks if (work := self._prepare(chunk)) is not None]

    def postprocess(self, work: Sequence[Work], tokens: Sequence[int | None]) -> None:
        """The step has completed: publish its full blocks, then hand out its tokens."""
        for item, token in zip(work, tokens, strict=True):
            request = item.request
            request.num_computed = item.stop
            self.supply.supplied(request, item.num_tokens, COMPUTE)
            added = self.residency.publish_computed(request)
            for block in added:
                self.ceiling.seen(block.address)
            if self.storer is not None:
                self.storer.offer(added)
            if token is not None:
                self._generated(request, token)

    def end(self, request: Request, finish: str, tokens: tuple[int, ...] = (), error: str | None = None) -> None:
        """End a request in any state; all it holds is given back before its sink hears of it."""
        if request.blocks:
            self.supply.on_touched(request.blocks[-1].address)
        self.supply.let_go(request)
        self.roster.remove(request)
        self.on_end(request)
        if not request.new.is_proof:
            self._count_end(request, finish)
        self._tell(request, TokenEvent(request.request_id, tokens, finish, self._first_sources(request, tokens), error))

    def _count_end(self, request: Request, finish: str) -> None:
        self.instruments.requests.add(1, outcome=finish)
        if finish in ("stop", "length"):
            self.workload.record_request(request.num_generated, self.clock() - request.new.arrival)

    def seconds_to_wait(self) -> float | None:
        """How long nothing can happen without news: None without requests, else until a wait of theirs is over."""
        if not len(self.roster):
            return None
        loads = [request.load for request in self.roster.running if request.load is not None]
        ends = [wakes_at for load in loads if (wakes_at := load.wakes_at) is not None]
        ends += [
            request.leader.progressed_at + self.settings.follow_seconds
            for request in self.roster.running
            if request.leader is not None
        ]
        if self.roster.waiting and self.storer is not None and self.storer.gives_way_at is not None:
            ends.append(self.storer.gives_way_at)
        return max(0.0, min([self.clock() + _MAX_WAIT_SECONDS, *ends]) - self.clock())

    def _admit(self) -> None:
        roster = self.roster
        if not roster.waiting:
            return
        promised = sum(map(self._promised, roster.running))
        while roster.waiting and len(roster.running) < self.settings.num_places:
            request = roster.waiting[0]
            need, num_available = self.supply.need(request), self.residency.table.num_available
            if not scheduler.may_enter(need, num_available, promised, is_alone=not roster.running):
                if self._is_freed_by_stores():
                    continue
                return
            roster.admit(request)
            self._look_for_the_ceiling(request)
            request.progressed_at = self.clock()
            self.supply.advance(request)
            promised += self._promised(request)

    def _look_for_the_ceiling(self, request: Request) -> None:
        """Once, in the order in which requests may find one another's blocks."""
        is_repeat = request.new.replay_cause is not None
        if request.unavoidable_tokens is None and not is_repeat and not request.new.is_proof:
            addresses = request.addresses[: request.num_reusable]
            request.unavoidable_tokens = self.ceiling.prompt(addresses, request.num_prompt, request.block_tokens)

    def _is_freed_by_stores(self) -> bool:
        return self.storer is not None and self.storer.give_way()

    def _promised(self, request: Request) -> int:
        """Pages to keep for an admitted request: for its tokens so far, and for a little output."""
        growth = -(-request.num_left // request.block_tokens)
        return self.supply.need(request).num_new + min(growth, self.settings.growth_blocks)

    def _candidates(self) -> list[scheduler.Candidate]:
        num_new = self.limits.max_batch_tokens // self.limits.block_tokens + 2 * len(self.roster.running)
        is_scarce = self.residency.table.num_available < num_new  # counting own pages is not free
        if is_scarce:
            self._is_freed_by_stores()
        return [
            scheduler.Candidate(
                request_id=request.request_id,
                num_computed=request.num_computed,
                num_tokens=request.compute_stop,
                num_pages=len(request.pages),
                num_own_pages=self.residency.num_own_pages(request) if is_scarce else 0,
                is_blocked=request.is_blocked,
            )
            for request in self.roster.running
        ]

    def _running(self, request_id: str) -> Request:
        request = self.roster.get(request_id)
        assert request is not None
        return request

    def _preempt(self, request: Request) -> None:
        self.on_preempted(request)
        self.supply.let_go(request)
        self.roster.put_back(request)
        self.instruments.preemptions.add(1)

    def _prepare(self, chunk: scheduler.Chunk) -> Work | None:
        """Take the pages; None if its next block is just coming from below."""
        request = self._running(chunk.request_id)
        stop = self.supply.reserve(request, chunk.stop)
        if stop == chunk.start:
            return None
        has_pages = self.residency.grow(request, -(-stop // request.block_tokens))
        assert has_pages, "the plan promised pages that are not there"
        return Work(request, chunk.start, stop)

    def _generated(self, request: Request, token: int) -> None:
        request.tokens.append(token)
        self.instruments.generation_tokens.add(not request.new.is_proof)
        if token in request.new.stop_token_ids:
            self.end(request, "stop", (token,))
        elif not request.num_left:
            self.end(request, "length", (token,))
        else:
            self._tell(
                request, TokenEvent(request.request_id, (token,), sources=self._first_sources(request, (token,)))
            )

    def _first_sources(self, request: Request, tokens: tuple[int, ...]) -> Mapping[str, int] | None:
        """Time a token and, if it is the first one, count the prompt's tokens and return their sources."""
        if not tokens:
            return None
        now, last = self.clock(), request.last_token_at
        request.last_token_at = now
        if last is not None:
            self.instruments.inter_token.observe(now - last)
            return None
        sources = request.ledger.sources()
        assert sum(sources.values()) == request.num_prompt
        if not request.new.is_proof:
            self.instruments.first_token.observe(now - request.new.arrival)
            self._count_prompt(request, sources)
        return sources

    def _count_prompt(self, request: Request, sources: Mapping[str, int]) -> None:
        for source, num_tokens in sources.items():
            if request.new.replay_cause is None:
                self.instruments.prompt_tokens.add(num_tokens, source=source)
            elif num_tokens:
                self.instruments.replayed_tokens.add(num_tokens, cause=request.new.replay_cause, source=source)
        if request.unavoidable_tokens is not None:
            self._count_hits(request.num_prompt, sources, request.unavoidable_tokens)

    def _count_hits(self, num_prompt: int, sources: Mapping[str, int], unavoidable_tokens: float) -> None:
        self.ceiling.count(num_prompt, num_prompt - sources[COMPUTE], unavoidable_tokens)
        self.instruments.unavoidable_tokens.add(unavoidable_tokens)

    def _tell(self, request: Request, event: TokenEvent) -> None:
        try:
            request.sink(event)
        except Exception:  # noqa: BLE001 - the caller's code: its request ends, the others go on
            _log.exception("a token sink failed")
            if event.finish is None:
                self.end(request, "abort")
