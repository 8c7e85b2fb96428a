"""The metrics of asking pods, made in one place."""

from pagoda_operator.scrape.answers import Answers, Failure
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

    def count(self, answers: Answers, *, has_asked_engine: bool) -> None:
        """Count one look."""
        asked = (("engine", answers.engine), ("sidecar", answers.sidecar))
        for container, answer in asked if has_asked_engine else asked[1:]:
            outcome = answer.outcome if isinstance(answer, Failure) else "answered"
            self._scrapes.add(container=container, outcome=outcome)
