"""What the process answers over HTTP: whether its loop turns, whether it could lead, and its metrics.

`/ready` knows no difference between who leads and who waits: both are ready when the API server answers them and lets
them read and write the Lease. So a rollout waits for a process that could take over, and for nothing else.
"""

from collections.abc import Callable

from aiohttp import web

from pagoda_runtime.metrics import Metrics
from pagoda_runtime.web import add_common_routes


def application(metrics: Metrics, problem: Callable[[], str]) -> web.Application:
    """Return the application; `problem` says why this process could not lead, empty: it could."""

    async def ready(_: web.Request) -> web.Response:
        reason = problem()
        if reason:
            return web.json_response({"status": "not ready", "reason": reason}, status=503)
        return web.json_response({"status": "ready"})

    app = web.Application()
    add_common_routes(app, metrics)
    app.router.add_get("/ready", ready)
    return app
