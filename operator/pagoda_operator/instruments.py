"""The metrics of the operator's process, made in one place."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from pagoda_protocol import metrics as names
from pagoda_runtime.metrics import Metrics


@dataclass
class Outcome:
    """How one reconcile ended: "Done", or the code of what stopped it; until somebody says, it was cut off."""

    result: str = "CutOff"


class Instruments:
    """Every instrument of the process; those of scraping and annotating are made beside them."""

    def __init__(self, metrics: Metrics) -> None:
        self.leader = metrics.gauge(names.OPERATOR_LEADER, "1 while this process holds the Lease.")
        self.reconciles = metrics.counter(names.OPERATOR_RECONCILES, "Reconciles of a pool by result.", ("result",))
        self.reconcile_seconds = metrics.histogram(names.OPERATOR_RECONCILE_SECONDS, "Time of one reconcile of a pool.")
        self.queue_depth = metrics.gauge(names.OPERATOR_QUEUE_DEPTH, "Pools that wait for a reconcile.")
        self.queue_adds = metrics.counter(names.OPERATOR_QUEUE_ADDS, "Triggers of a reconcile, before they are joined.")
        self.queue_retries = metrics.counter(
            names.OPERATOR_QUEUE_RETRIES, "Reconciles that failed and are tried again."
        )
        self.api_calls = metrics.counter(
            names.OPERATOR_API_CALLS, "Calls of the API server by verb, kind and status code.", ("verb", "kind", "code")
        )

    def count_call(self, verb: str, kind: str, code: str) -> None:
        """Count one call of the API server."""
        self.api_calls.add(1, verb=verb, kind=kind, code=code)

    @contextlib.contextmanager
    def reconcile(self) -> Iterator[Outcome]:
        """Measure one reconcile; whoever does it says how it ended."""
        outcome, begin = Outcome(), time.monotonic()
        try:
            yield outcome
        finally:
            self.reconcile_seconds.observe(time.monotonic() - begin)
            self.reconciles.add(1, result=outcome.result)
