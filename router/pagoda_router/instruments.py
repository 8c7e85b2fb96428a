"""The router's metrics, made in one place."""

from pagoda_protocol import metrics as names
from pagoda_runtime.metrics import Metrics


class Instruments:
    """Every instrument of one router."""

    def __init__(self, metrics: Metrics) -> None:
        self.decisions = metrics.counter(names.ROUTER_DECISIONS, "Routing decisions by reason.", ("reason",))
        self.requests = metrics.counter(
            names.ROUTER_REQUESTS, "Requests by status code; 499: the client left before the end.", ("code",)
        )
        self.retries = metrics.counter(names.ROUTER_RETRIES, "Requests sent to a second pod by reason.", ("reason",))
        self.streams_broken = metrics.counter(
            names.ROUTER_STREAMS_BROKEN, "Streams that ended with an error event because their pod was lost."
        )
        self.outstanding_seconds = metrics.gauge(
            names.ROUTER_OUTSTANDING_SECONDS, "Predicted work that this router has at a pod.", ("pod",)
        )
        self.hint_rows = metrics.gauge(names.ROUTER_HINT_ROWS, "Prefix digests known of a pod.", ("pod",))
        self.hint_stream_up = metrics.gauge(
            names.ROUTER_HINT_STREAM_UP, "1 while a pod's hint stream is open and has sent its head.", ("pod",)
        )
        self.discovery_failures = metrics.counter(
            names.ROUTER_DISCOVERY_FAILURES, "Times Kubernetes did not say who the pods are, by reason.", ("reason",)
        )
        self.discovery_degraded = metrics.gauge(
            names.ROUTER_DISCOVERY_DEGRADED,
            "1 while the pods known last are used, by reason; else no series.",
            ("reason",),
        )

    def forget_pod(self, name: str) -> None:
        """Drop the series of a pod that is gone."""
        for gauge in (self.outstanding_seconds, self.hint_rows, self.hint_stream_up):
            gauge.remove(pod=name)
