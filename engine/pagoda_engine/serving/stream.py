"""Server-sent events, as OpenAI's clients read them.

Rules: the response begins with the first chunk, so that what goes wrong before it is still a plain HTTP error (and a
router may still try another pod). After it an error is an event of its own, and `[DONE]` is not sent: it would say that
the answer is whole. A slow reader holds up its own handler in `send` and nobody else.
"""

import json
from typing import Any

from aiohttp import web

from pagoda_engine.serving.errors import ApiError

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # proxies of nginx's kind would collect the events otherwise
}


class EventStream:
    """The events of one response."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._response: web.StreamResponse | None = None

    @property
    def has_begun(self) -> bool:
        """Whether anything was sent, so that the status can no longer change."""
        return self._response is not None

    async def send(self, *documents: dict[str, Any]) -> None:
        """Send one event per document, in one write.

        Raises:
            ConnectionError: the client is gone.
        """
        await self._write("".join(f"data: {_compact(document)}\n\n" for document in documents))

    async def fail(self, error: ApiError) -> web.StreamResponse:
        """End a stream that has begun with an error event."""
        await self.send(error.body())
        return await self._end()

    async def done(self) -> web.StreamResponse:
        """End the stream after its last chunk."""
        await self._write("data: [DONE]\n\n")
        return await self._end()

    async def _write(self, text: str) -> None:
        if self._response is None:
            self._response = web.StreamResponse(headers=_HEADERS)
            await self._response.prepare(self._request)
        await self._response.write(text.encode())

    async def _end(self) -> web.StreamResponse:
        assert self._response is not None
        await self._response.write_eof()
        return self._response


def _compact(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))
