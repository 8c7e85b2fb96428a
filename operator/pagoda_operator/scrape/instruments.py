"""The metrics of asking pods, made in one place."""

from pagoda_operator.scrape.ask import Answers, Failure
from pagoda_protocol import metrics as names
from pagoda_runtime.metrics import Metrics


class ScrapeInstruments:
    """What asking pods brought."""

    def __init__(self, metrics: Metrics) -> None:
        self._scrapes = metrics.counter(
            names.OPERATOR_SCRAPES,
            "Looks at a pod's container by outcome; absent: it does not run.",
            ("container", "outcome"),
        )

    def count(self, answers: Answers) -> None:
        """Count one look at both containers."""
        for container, answer in (("engine", answers.engine), ("sidecar", answers.sidecar)):
            outcome = answer.outcome if isinstance(answer, Failure) else "answered"
            self._scrapes.add(container=container, outcome=outcome)
