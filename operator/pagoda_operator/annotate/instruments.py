"""The metrics of annotating pods, made in one place."""

from pagoda_protocol import metrics as names
from pagoda_runtime.metrics import Metrics


class AnnotateInstruments:
    """What writing annotations brought."""

    def __init__(self, metrics: Metrics) -> None:
        self.writes = metrics.counter(
            names.OPERATOR_ANNOTATION_WRITES,
            "Writes of a pod's routing annotations by outcome: written, or how the API server refused.",
            ("outcome",),
        )
        self.waiting = metrics.gauge(
            names.OPERATOR_ANNOTATIONS_WAITING, "Pods whose routing annotations wait to be written."
        )
