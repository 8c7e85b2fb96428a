"""One OpenAI request: read, place, send, pass on; once more on another pod if the first one gave no byte."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from pagoda_router import headers
from pagoda_router.errors import BodyTooLargeError, NoPodError, PodError, PodUnavailableError, RequestError
from pagoda_router.fleet import Fleet
from pagoda_router.instruments import Instruments
from pagoda_router.placement import Placer, Routable
from pagoda_router.pods import Pod
from pagoda_router.policies import Decision
from pagoda_router.relay import Relay
from pagoda_router.requests import Digester, parse_request
from pagoda_router.upstream import Deadlines, Outgoing, Patience, sent
from pagoda_router.waits import Waits
from pagoda_runtime.logs import fields

_log = logging.getLogger(__name__)

_MAX_TRIES = 2
_THREAD_FROM_BYTES = 256 << 10  # smaller bodies are read faster than a thread is reached

# Reasons of requests without digests.
UNKNOWN_KEY = "unknown_key"
NO_DIGESTS = "no_digests"
ANY_POD = "any_pod"  # nothing is computed for it


@dataclass(frozen=True)
class Limits:
    """What the proxy accepts and how long it waits."""

    max_body_bytes: int = 8 << 20
    deadlines: Deadlines = field(default_factory=Deadlines)


class Proxy:
    """Serves the paths that go to a pod."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        fleet: Fleet,
        placer: Placer,
        instruments: Instruments,
        digester: Digester,
        limits: Limits,
        drain: Waits,
    ) -> None:
        self._session = session
        self._fleet = fleet
        self._placer = placer
        self._instruments = instruments
        self._digester = digester
        self._limits = limits
        self._drain = drain

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Serve `POST /v1/chat/completions` and `POST /v1/completions`.

        Raises:
            RequestError, NoPodError, PodError, PodSilentError, DrainOverError, ClientGoneError: nothing was sent to
                the client.
        """
        body = await self._read_body(request)
        scope = self._digester.scope_of(request.headers.get("Authorization"))
        templates = self._placer.template_digests()
        if len(body) > _THREAD_FROM_BYTES:
            routable = await asyncio.to_thread(_facts, self._digester, scope, templates, body)
        else:
            routable = _facts(self._digester, scope, templates, body)
        return await self._forward(request, body, routable)

    async def models(self, request: web.Request) -> web.StreamResponse:
        """Serve `GET /v1/models` and `/v1/models/NAME`, which any pod can answer; it is no work."""
        return await self._forward(request, None, Routable(0, 0, {}, ANY_POD))

    async def _forward(self, request: web.Request, body: bytes | None, routable: Routable) -> web.StreamResponse:
        identity = headers.request_id(request.headers)
        outgoing = Outgoing(request.method, request.path_qs, headers.to_pod(request.headers, identity), body)
        tried: dict[Pod, PodError] = {}
        while True:
            try:
                with self._placer.placed(routable, tried.keys()) as decision:
                    if tried:
                        self._instruments.retries.add(reason=next(iter(tried.values())).reason)
                    with self._leaving_if_hung(decision.pod, tried.keys()) as hang:
                        return await self._try(request, outgoing, identity, decision, hang)
            except NoPodError:
                if not tried:
                    raise
                raise next(iter(tried.values())) from None  # what happened first says more than that nobody is left
            except PodError as error:
                self._note_failure(decision.pod, error)
                tried[decision.pod] = error
                _log.info("pod gave no answer %s", fields(request=identity, reason=str(error)))
                if len(tried) == _MAX_TRIES:
                    raise

    async def _try(
        self, request: web.Request, outgoing: Outgoing, identity: str, decision: Decision, hang: Waits
    ) -> web.StreamResponse:
        deadlines = self._limits.deadlines
        patience = Patience(deadlines, self._drain, hang)
        async with sent(self._session, decision.pod, outgoing, patience) as upstream:
            if upstream.response.status == 503:
                raise PodUnavailableError(f"pod {decision.pod.name} answered 503")
            passed = headers.to_client(upstream.response.headers, identity, decision)
            return await Relay(request, passed, deadlines.idle, self._instruments).run(upstream)

    @contextlib.contextmanager
    def _leaving_if_hung(self, pod: Pod, tried: AbstractSet[Pod]) -> Iterator[Waits]:
        """Yield waits that end when `pod` hangs, as long as there is another one to try."""
        hang, member = Waits(), self._fleet.get(pod)

        def leave() -> None:
            if any(other.pod != pod for other in self._fleet.ready()):
                hang.end()

        is_last_try = len(tried) + 1 == _MAX_TRIES
        with contextlib.nullcontext() if member is None or is_last_try else member.readiness.watched(leave):
            yield hang

    def _note_failure(self, pod: Pod, error: PodError) -> None:
        member = self._fleet.get(pod)
        if member is not None and error.shows_not_ready:
            member.readiness.failed(str(error))

    async def _read_body(self, request: web.Request) -> bytes:
        limit = self._limits.max_body_bytes
        if (request.content_length or 0) > limit:
            raise BodyTooLargeError(f"the body is larger than {limit} bytes")
        body = bytearray()
        try:
            while chunk := await request.content.readany():
                body += chunk
                if len(body) > limit:
                    raise BodyTooLargeError(f"the body is larger than {limit} bytes")
        except (aiohttp.ClientPayloadError, web.HTTPBadRequest, web.RequestPayloadError) as error:
            raise RequestError(f"the body cannot be read: {type(error).__name__}") from error
        return bytes(body)


def _facts(digester: Digester, scope: str | None, templates: AbstractSet[bytes], raw: bytes) -> Routable:
    """Return what the placer needs of a body. Pure, so that a thread may do it.

    Raises:
        RequestError: the body is not a JSON object.
    """
    parsed = parse_request(raw)
    if scope is None:  # the engine will refuse the key; a guess at its prefix is nobody's business
        return Routable(parsed.num_bytes, parsed.num_decode_tokens, {}, UNKNOWN_KEY)
    points = digester.points(scope, templates, parsed.body)
    if points is None:
        return Routable(parsed.num_bytes, parsed.num_decode_tokens, {}, NO_DIGESTS)
    num_bytes = max((found[-1][1] for found in points.values() if found), default=parsed.num_bytes)
    return Routable(num_bytes, parsed.num_decode_tokens, points, None)
