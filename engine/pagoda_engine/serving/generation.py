"""One HTTP request's life in the engine: submitted as one engine request per choice, followed, and always ended.

    prompts × n ──submit──► engine thread ──sink: call_soon_threadsafe──► one queue ──► deltas(), in the order they came

Rules: leaving `running` aborts whatever still runs, in any state and for any reason (a client that went away shows as
cancellation). The queue needs no bound of its own: an engine request sends at most `max_tokens` tokens. The event loop
does the detokenizing, which is microseconds per token.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from pagoda_engine.core.request import NewRequest, RequestRejected, TokenEvent, TokenSink
from pagoda_engine.model.interface import Sampling
from pagoda_engine.serving.auth import Chain
from pagoda_engine.serving.choice import Choice, Delta, Detokenizer
from pagoda_engine.serving.errors import EngineFailedError, InvalidRequestError, UnavailableError
from pagoda_engine.serving.openai import Decoding
from pagoda_engine.serving.usage import Usage

_NUM_SEEDS = 2**64
_SEED_STRIDE = 0x9E3779B97F4A7C15  # odd, so that the choices of one request never share a seed


class Submitter(Protocol):
    """What a generation needs of the engine; neither call waits for a step."""

    def submit(self, request: NewRequest, sink: TokenSink) -> None:
        """Queue a request; any thread."""

    def abort(self, request_id: str) -> None:
        """End a request in any state."""


@dataclass(frozen=True)
class Order:
    """What is to be generated: each prompt `decoding.num_choices` times."""

    prompts: Sequence[Sequence[int]]
    chains: Sequence[Chain]  # one per prompt
    max_tokens: Sequence[int]  # one per prompt
    decoding: Decoding
    eos_ids: frozenset[int]
    arrival: float  # time.monotonic()


class Generation:
    """The choices of one HTTP request; choice `i` belongs to prompt `i // num_choices`."""

    def __init__(
        self, engine: Submitter, order: Order, request_id: str, detokenizer: Callable[[], Detokenizer]
    ) -> None:
        self._engine = engine
        self._order = order
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, TokenEvent]] = asyncio.Queue()
        decoding = order.decoding
        eos_ids = frozenset() if decoding.ignore_eos else order.eos_ids
        # The engine cannot hold an end back, so with `min_tokens` the choice ends the request instead.
        self._stop_ids = frozenset() if decoding.min_tokens else eos_ids
        self.choices = [
            Choice(index, detokenizer(), decoding.stops, eos_ids, decoding.min_tokens)
            for index in range(len(order.prompts) * decoding.num_choices)
        ]
        self._ids = [f"{request_id}-{secrets.token_hex(4)}-{choice.index}" for choice in self.choices]
        self._live: set[int] = set()  # choices the engine has not ended and we have not aborted
        self._sources: dict[int, Mapping[str, int]] = {}  # by choice

    @contextlib.asynccontextmanager
    async def running(self, workers: Executor) -> AsyncIterator[None]:
        """Submit on entry, in a worker since the engine hashes prompts there; abort what still runs on exit.

        Raises:
            InvalidRequestError: the engine could never serve it.
        """
        submitted = self._loop.run_in_executor(workers, self._submit_all)
        try:
            await asyncio.shield(submitted)
            yield
        finally:
            if submitted.done():
                self._abort_all()
            else:  # cancelled meanwhile: an abort must not overtake its request
                submitted.add_done_callback(self._abort_submitted)

    async def deltas(self) -> AsyncIterator[Delta]:
        """Yield what there is to show until every choice has ended; each choice's last delta has `finish`.

        Raises:
            EngineFailedError: the engine failed at one of the choices.
            UnavailableError: the engine was stopped.
        """
        while self._live:
            index, event = await self._events.get()
            if index not in self._live:  # sent before it learned of our abort
                continue
            if event.sources is not None:
                self._sources[index] = event.sources
            if event.finish in ("error", "abort"):
                self._live.discard(index)
                if event.finish == "abort":
                    raise UnavailableError("The engine is stopping; send the request again.")
                raise EngineFailedError(event.error or "The engine failed.")
            delta = self.choices[index].push(event.tokens, event.finish)
            if event.finish is not None:
                self._live.discard(index)
            elif delta.finish is not None:
                self._abort(index)
            if delta.text or delta.finish is not None:
                yield delta

    def has_begun(self, index: int) -> bool:
        """Whether the first token of choice `index` exists, so that all of its prompt is computed."""
        return index in self._sources

    def computed(self, index: int) -> Sequence[int]:
        """Return the tokens of choice `index` whose KV is complete: all but the last, which was only sampled."""
        prompt = self._order.prompts[index // self._order.decoding.num_choices]
        return [*prompt, *self.choices[index].tokens[:-1]]

    def usage(self) -> Usage:
        """Return the tokens used so far; a prompt counts once, however many choices it has."""
        sources: dict[str, int] = {}
        for index in range(0, len(self.choices), self._order.decoding.num_choices):
            for source, count in self._sources.get(index, {}).items():
                sources[source] = sources.get(source, 0) + count
        prompt_tokens = sum(map(len, self._order.prompts))
        return Usage(prompt_tokens, sum(len(choice.tokens) for choice in self.choices), sources)

    def _requests(self) -> Iterator[NewRequest]:
        order, decoding = self._order, self._order.decoding
        ids = iter(self._ids)
        for prompt, chain, max_tokens in zip(order.prompts, order.chains, order.max_tokens, strict=True):
            # Drawn here and not by the model, so that a preempted or continued request repeats itself.
            seed = secrets.randbelow(_NUM_SEEDS) if decoding.seed is None else decoding.seed
            for number in range(decoding.num_choices):
                yield NewRequest(
                    request_id=next(ids),
                    prompt=prompt,
                    root=chain.root,
                    tenant_tag=chain.tenant_tag,
                    crossing=chain.crossing,
                    sampling=Sampling(
                        temperature=decoding.temperature,
                        top_p=decoding.top_p,
                        top_k=decoding.top_k,
                        seed=(seed + number * _SEED_STRIDE) % _NUM_SEEDS,
                    ),
                    max_tokens=max_tokens,
                    stop_token_ids=self._stop_ids,
                    arrival=order.arrival,
                    replay_cause="n" if number else None,
                )

    def _submit_all(self) -> None:
        for choice, request in zip(self.choices, self._requests(), strict=True):
            self._submit(choice.index, request)

    def _submit(self, index: int, request: NewRequest) -> None:
        def sink(event: TokenEvent) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for it any more
                self._loop.call_soon_threadsafe(self._events.put_nowait, (index, event))

        try:
            self._engine.submit(request, sink)
        except RequestRejected as rejected:
            raise InvalidRequestError(rejected.message, rejected.param, rejected.code) from rejected
        self._live.add(index)

    def _abort_submitted(self, submitted: asyncio.Future[None]) -> None:
        if not submitted.cancelled():
            submitted.exception()  # nobody else will look at it
        self._abort_all()

    def _abort_all(self) -> None:
        for index in sorted(self._live):
            self._abort(index)

    def _abort(self, index: int) -> None:
        self._live.discard(index)
        self._engine.abort(self._ids[index])
