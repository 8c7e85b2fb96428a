"""From a pod's answer to the client: a stream as it comes, anything else only when it is whole.

Until a byte has gone to the client a lost pod is a PodError, and the caller may try another one. After it a stream ends
with an error event and without [DONE].
"""

import asyncio
import logging

from aiohttp import web
from multidict import CIMultiDict

from pagoda_router.errors import (
    ClientGoneError,
    DrainOverError,
    PodError,
    PodLostError,
    PodSilentError,
    RouterError,
    error_event,
)
from pagoda_router.events import EventSplitter
from pagoda_router.instruments import Instruments
from pagoda_router.upstream import Upstream
from pagoda_runtime.logs import fields

_log = logging.getLogger(__name__)

_CUT_SHORT = (PodError, PodSilentError, DrainOverError)
_MAX_WHOLE_BYTES = 8 << 20  # a larger answer is passed on as it comes


class Relay:
    """Passes one answer to one client."""

    def __init__(
        self, request: web.Request, headers: CIMultiDict[str], write_seconds: float, instruments: Instruments
    ) -> None:
        self._request = request
        self._headers = headers
        self._write_seconds = write_seconds
        self._instruments = instruments
        self._response: web.StreamResponse | None = None

    async def run(self, upstream: Upstream) -> web.StreamResponse:
        """Pass the answer on and return what was sent.

        Raises:
            PodError, PodSilentError, DrainOverError: there is no answer, and the client has seen nothing.
            ClientGoneError: the client failed.
        """
        if upstream.is_event_stream:
            return await self._stream(upstream)
        return await self._whole(upstream)

    async def _whole(self, upstream: Upstream) -> web.StreamResponse:
        body = bytearray()
        while (chunk := await upstream.read()) is not None:
            body += chunk
            if len(body) > _MAX_WHOLE_BYTES:
                return await self._large(upstream, bytes(body))
        return web.Response(status=upstream.response.status, headers=self._headers, body=bytes(body))

    async def _large(self, upstream: Upstream, begun: bytes) -> web.StreamResponse:
        """Pass on an answer too large to hold. If it is cut, so is the client's: that is all HTTP can say then."""
        await self._write(upstream, begun)
        try:
            while (chunk := await upstream.read()) is not None:
                await self._write(upstream, chunk)
        except _CUT_SHORT as error:
            raise ClientGoneError(f"cut off: {error}") from error
        return await self._end()

    async def _stream(self, upstream: Upstream) -> web.StreamResponse:
        splitter = EventSplitter()
        try:
            # Not read past [DONE]: clients leave there, and must not be counted as gone while the pod's end is awaited.
            while not splitter.is_done and (chunk := await upstream.read()) is not None:
                if whole := splitter.feed(chunk):
                    await self._write(upstream, whole)
            if not (upstream.is_delimited or splitter.is_done):
                raise PodLostError(f"pod {upstream.pod.name} was lost: its stream has no end")
            if rest := splitter.rest():
                await self._write(upstream, rest)
            if self._response is None:
                raise PodLostError(f"pod {upstream.pod.name} was lost: its stream is empty")
        except _CUT_SHORT as error:
            if self._response is None:
                raise
            self._instruments.streams_broken.add()
            _log.warning("stream broken %s", fields(pod=upstream.pod.name, reason=str(error)))
            await self._write(upstream, error_event(f"The stream cannot be finished: {error}", _code(error)))
        return await self._end()

    async def _write(self, upstream: Upstream, data: bytes) -> None:
        try:
            async with asyncio.timeout(self._write_seconds):
                if self._response is None:
                    self._response = web.StreamResponse(status=upstream.response.status, headers=self._headers)
                    await self._response.prepare(self._request)
                await self._response.write(data)
        except TimeoutError as error:
            raise ClientGoneError(f"the client took nothing for {self._write_seconds:g} s") from error
        except OSError as error:
            raise ClientGoneError("the client closed its connection") from error

    async def _end(self) -> web.StreamResponse:
        assert self._response is not None
        try:
            await self._response.write_eof()
        except OSError as error:
            raise ClientGoneError("the client closed its connection") from error
        return self._response


def _code(error: RouterError) -> str:
    match error:
        case DrainOverError():
            return "router_stopping"
        case PodSilentError():
            return "pod_silent"
    return "pod_lost"
