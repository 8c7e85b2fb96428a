"""A metrics registry whose instruments never raise: a wrong label must not kill the request it counts.

metrics = Metrics()
hits = metrics.counter("pagoda_tier_lookups", "Lookups by tier and result.", ("tier", "result"))
hits.add(1, tier="ram", result="hit")
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

_log = logging.getLogger(__name__)

CONTENT_TYPE = CONTENT_TYPE_LATEST
LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Instrument:
    """A counter, gauge or histogram behind one method per verb; a failure is logged once and swallowed."""

    def __init__(self, metric: Counter | Gauge | Histogram, label_names: Sequence[str]) -> None:
        self._metric = metric
        self._label_names = tuple(label_names)
        self._has_failed = False

    def add(self, amount: float = 1, **labels: str) -> None:
        """Increase a counter or gauge."""
        self._attempt(lambda child: child.inc(amount), labels)

    def set(self, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._attempt(lambda child: child.set(value), labels)

    def observe(self, value: float, **labels: str) -> None:
        """Record one observation of a histogram."""
        self._attempt(lambda child: child.observe(value), labels)

    def remove(self, **labels: str) -> None:
        """Forget the series of `labels`, e.g. of a pod that is gone; unknown labels are fine."""
        try:
            self._metric.remove(*(labels[name] for name in self._label_names))
        except Exception:  # noqa: BLE001 - absent already, or a bug that must not reach the caller
            _log.debug("no series to remove", exc_info=True)

    def value(self, **labels: str) -> float:
        """Return the current value (a histogram's sum), for tests and for loads we publish ourselves."""
        child = self._metric.labels(**labels) if self._label_names else self._metric
        holder = getattr(child, "_value", None) or child._sum  # type: ignore[union-attr]
        return float(holder.get())

    def _attempt(self, action: Callable[[Any], None], labels: Mapping[str, str]) -> None:
        try:
            action(self._metric.labels(**labels) if self._label_names else self._metric)
        except Exception:  # noqa: BLE001 - the whole point: metrics never raise
            if not self._has_failed:
                self._has_failed = True
                _log.exception("a metric could not be recorded; further failures of it are silent")


class Metrics:
    """One registry per program (never the library's global one, so that tests can run several in one process)."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()

    def counter(self, name: str, documentation: str, labels: Sequence[str] = ()) -> Instrument:
        """Make a counter; the exposition adds `_total`."""
        return Instrument(Counter(name, documentation, labels, registry=self._registry), labels)

    def gauge(self, name: str, documentation: str, labels: Sequence[str] = ()) -> Instrument:
        """Make a gauge."""
        return Instrument(Gauge(name, documentation, labels, registry=self._registry), labels)

    def histogram(
        self, name: str, documentation: str, labels: Sequence[str] = (), buckets: Sequence[float] = LATENCY_BUCKETS
    ) -> Instrument:
        """Make a histogram, in seconds unless its name says otherwise."""
        return Instrument(Histogram(name, documentation, labels, registry=self._registry, buckets=buckets), labels)

    def info(self, name: str, documentation: str, values: Mapping[str, str]) -> None:
        """Publish constant facts as labels of `<name>_info`."""
        Info(name, documentation, registry=self._registry).info(dict(values))

    def exposition(self) -> bytes:
        """Return the registry in Prometheus text form."""
        return generate_latest(self._registry)
