"""The HTTP every program has: `/health`, `/metrics`, and a server that says plainly when its port is taken."""

import contextlib
import logging
import socket
from collections.abc import AsyncIterator

from aiohttp import web
from aiohttp.http import HttpProcessingError

from pagoda_runtime.metrics import CONTENT_TYPE, Metrics

_log = logging.getLogger(__name__)


class PortTakenError(Exception):
    """The address cannot be listened on; the message names it."""


def _as_said_by_callers(record: logging.LogRecord) -> bool:
    """Make one quiet line of what a caller got wrong in HTTP itself: anybody could fill our log with tracebacks."""
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if isinstance(error, (HttpProcessingError, web.RequestPayloadError)):
        record.levelno, record.levelname = logging.INFO, "INFO"
        record.msg, record.args = "no HTTP that can be understood: %s", (type(error).__name__,)
        record.exc_info = record.exc_text = None
    return True


_log.addFilter(_as_said_by_callers)


def add_common_routes(app: web.Application, metrics: Metrics) -> None:
    """Add `GET /health` (200 while the loop turns) and `GET /metrics`."""

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def exposition(_: web.Request) -> web.Response:
        return web.Response(body=metrics.exposition(), headers={"Content-Type": CONTENT_TYPE})

    app.router.add_get("/health", health)
    app.router.add_get("/metrics", exposition)


@contextlib.asynccontextmanager
async def serving(
    app: web.Application, host: str, port: int, shutdown_seconds: float = 5.0, listener: socket.socket | None = None
) -> AsyncIterator[int]:
    """Serve `app` while the context is open; yield the port (a free one when `port` is 0).

    With a `listener` that somebody has opened for us it is served there.

    Raises:
        PortTakenError: the address is in use or not ours.
    """
    runner = web.AppRunner(
        app, access_log=None, logger=_log, shutdown_timeout=shutdown_seconds, handler_cancellation=True
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port) if listener is None else web.SockSite(runner, listener)
        try:
            await site.start()
        except OSError as error:
            raise PortTakenError(f"cannot listen on {host}:{port}: {error.strerror}; choose another port") from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
