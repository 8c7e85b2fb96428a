"""`GET /v1/prefixes`: the hint stream over HTTP, one JSON object a line (docs/design.md)."""

import asyncio
import json
import time

from aiohttp import web

from pagoda_sidecar.hints import Hints, Subscriber, line, numbered

BEAT_SECONDS = 1.0
# A reader that takes nothing for so long is dropped
WRITE_SECONDS = 10.0


def add_hint_routes(app: web.Application, hints: Hints) -> None:
    """Add the stream to `app`, and end it when the app shuts down."""

    async def prefixes(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
        await response.prepare(request)
        subscriber, head, snapshot = hints.subscribe()
        try:
            writer = _Writer(response)
            await response.write(json.dumps(head, separators=(",", ":")).encode() + b"\n")
            await writer.write(snapshot)
            if request.query.get("follow") != "false":
                await _follow(writer, subscriber)
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            hints.unsubscribe(subscriber)
        return response

    async def end_streams(_: web.Application) -> None:
        hints.close()

    app.router.add_get("/v1/prefixes", prefixes)
    app.on_shutdown.append(end_streams)


class _Writer:
    """Numbers the lines of one connection."""

    def __init__(self, response: web.StreamResponse) -> None:
        self._response = response
        self._sequence = 0

    async def write(self, lines: list[str]) -> None:
        data = []
        for text in lines:
            self._sequence += 1
            data.append(numbered(text, self._sequence))
        async with asyncio.timeout(WRITE_SECONDS):
            await self._response.write(b"".join(data))


async def _follow(writer: _Writer, subscriber: Subscriber) -> None:
    """Write deltas and beats until the stream is ended; a reader that is too far behind was ended by its queue."""
    next_beat = time.monotonic() + BEAT_SECONDS
    while True:
        lines = await subscriber.lines(max(0.0, next_beat - time.monotonic()))
        if time.monotonic() >= next_beat:
            next_beat = time.monotonic() + BEAT_SECONDS
            lines.append(line("beat", {}))
        if lines:
            await writer.write(lines)
        if subscriber.is_ended:
            return
