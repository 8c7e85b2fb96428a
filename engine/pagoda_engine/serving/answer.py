"""From an HTTP request to its answer: identify, prepare, generate, write.

Rules: the event loop does no parsing, rendering or tokenizing; whatever ends the handler (an error, a client that is
gone, the server's end) also ends the engine's requests.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from aiohttp import web

from pagoda_engine.serving.auth import Caller, Chain
from pagoda_engine.serving.errors import ApiError, EngineFailedError
from pagoda_engine.serving.gate import Gate
from pagoda_engine.serving.generation import Generation, Order
from pagoda_engine.serving.prepare import Language, Limits, Prepared
from pagoda_engine.serving.public import PublicTexts
from pagoda_engine.serving.reporter import Reported, Reporter
from pagoda_engine.serving.service import Service
from pagoda_engine.serving.shapes import Shape
from pagoda_engine.serving.stream import EventStream

_log = logging.getLogger(__name__)

Prepare = Callable[[bytes, str, Language, Limits, PublicTexts], Prepared]
MakeShape = Callable[[str, int, str, bool], Shape]

# Tokenizers release the interpreter's lock, templates and JSON do not: more threads would only take turns.
_PREPARING_THREADS = 2


class Answerer:
    """Answers completion requests of both kinds."""

    def __init__(self, gate: Gate[Service]) -> None:
        self._gate = gate
        self._reporter = Reporter()
        self._workers = ThreadPoolExecutor(_PREPARING_THREADS, thread_name_prefix="prepare")

    def close(self) -> None:
        """End the threads."""
        self._workers.shutdown(cancel_futures=True)
        self._reporter.close()

    async def answer(
        self, request: web.Request, request_id: str, prepare: Prepare, make_shape: MakeShape
    ) -> web.StreamResponse:
        """Answer one request.

        Raises:
            ApiError: before anything was sent.
            ConnectionError: the client is gone.
        """
        arrival = time.monotonic()  # the engine's clock
        with self._gate.entered() as service:
            caller = service.callers.identify(request.headers.get("Authorization"))
            data = await request.read()
            work = partial(_prepare, service, caller, prepare, data)
            prepared, chains = await asyncio.get_running_loop().run_in_executor(self._workers, work)
            eos_ids = service.language.eos_ids
            order = Order(prepared.prompts, chains, prepared.max_tokens, prepared.decoding, eos_ids, arrival)
            generation = Generation(service.engine, order, request_id, service.language.detokenizer)
            has_usage = prepared.delivery.include_usage
            shape = make_shape(request_id, int(time.time()), prepared.request.model, has_usage)
            try:
                async with generation.running(self._workers):
                    if prepared.delivery.stream:
                        return await _stream(EventStream(request), generation, shape, has_usage)
                    return await _whole(generation, shape)
            finally:
                self._reporter.request_ended(service, Reported(caller.scope, chains[0], prepared), generation)


def _prepare(service: Service, caller: Caller, prepare: Prepare, data: bytes) -> tuple[Prepared, list[Chain]]:
    """Return a request ready to be submitted, with the chain that each of its prompts belongs to."""
    prepared = prepare(data, service.model, service.language, service.limits, service.public)
    prompts = zip(prepared.prompts, prepared.openings, strict=True)
    return prepared, [service.callers.chain(caller, prompt, opening.num_tokens) for prompt, opening in prompts]


async def _whole(generation: Generation, shape: Shape) -> web.StreamResponse:
    async for _ in generation.deltas():
        pass
    return web.json_response(shape.whole(generation.choices, generation.usage()))


async def _stream(events: EventStream, generation: Generation, shape: Shape, has_usage: bool) -> web.StreamResponse:
    opened: set[int] = set()
    try:
        async for delta in generation.deltas():
            opening = shape.opening(delta.index) if delta.index not in opened else None
            opened.add(delta.index)
            await events.send(*([opening] if opening else ()), *shape.chunks(delta))
    except ConnectionError:
        raise
    except Exception as error:
        if not events.has_begun:
            raise
        if isinstance(error, ApiError):
            return await events.fail(error)
        _log.exception("a stream broke")
        return await events.fail(EngineFailedError("The engine failed on this request; its log says why."))
    if has_usage:
        await events.send(shape.usage_chunk(generation.usage()))
    return await events.done()
