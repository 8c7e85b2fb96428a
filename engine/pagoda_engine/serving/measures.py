"""What the server counts of its answers. Latencies and tokens are the core's to measure, which sees each step."""

from aiohttp import web

from pagoda_protocol import metrics as names
from pagoda_runtime.metrics import Metrics

GONE = "gone"  # instead of a code: the client went away before its answer was whole


class Measures:
    """The server's instruments."""

    def __init__(self, metrics: Metrics) -> None:
        self._answers = metrics.counter(names.HTTP_ANSWERS, "Answers by route and status code.", ("path", "code"))

    def answered(self, request: web.Request, code: str) -> None:
        """Count an answer under its route's pattern: a path that no route has must not become a label."""
        resource = request.match_info.route.resource
        self._answers.add(path="other" if resource is None else resource.canonical, code=code)
