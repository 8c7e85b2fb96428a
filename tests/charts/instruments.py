"""Every series that programs of ours publish, with its labels: found by letting each make its instruments."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from pagoda_engine.core.instruments import Instruments as EngineInstruments
from pagoda_engine.serving.measures import Measures
from pagoda_operator.annotate.instruments import AnnotateInstruments
from pagoda_operator.instruments import Instruments as OperatorInstruments
from pagoda_operator.pool_gauges import PoolGauges
from pagoda_operator.scrape.instruments import ScrapeInstruments
from pagoda_router.instruments import Instruments as RouterInstruments
from pagoda_sidecar.counters import Counters
from pagoda_sidecar.pool.counters import PoolCounters


class Recorder:
    """In place of a registry: remembers what would be published, under the names that Prometheus sees."""

    def __init__(self) -> None:
        self.series: dict[str, frozenset[str]] = {}

    def counter(self, name: str, _: str, labels: Sequence[str] = ()) -> Mock:
        return self._record(f"{name}_total", labels)

    def gauge(self, name: str, _: str, labels: Sequence[str] = ()) -> Mock:
        return self._record(name, labels)

    def histogram(self, name: str, _: str, labels: Sequence[str] = (), **__: Any) -> Mock:
        self._record(f"{name}_bucket", (*labels, "le"))
        self._record(f"{name}_count", labels)
        return self._record(f"{name}_sum", labels)

    def info(self, name: str, _: str, values: Mapping[str, str]) -> None:
        self._record(f"{name}_info", tuple(values))

    def _record(self, name: str, labels: Sequence[str]) -> Mock:
        self.series[name] = frozenset(labels)
        return Mock()


def published() -> dict[str, frozenset[str]]:
    """Return the labels of each series by its name."""
    recorder: Any = Recorder()
    engine_facts: Any = SimpleNamespace(block_tokens=16, num_pages=1, kv_dtype="Float32")
    engine_settings: Any = SimpleNamespace(max_batch_tokens=1, max_sequences=1)
    EngineInstruments(recorder, engine_facts, engine_settings)
    for make in (
        Measures, Counters, PoolCounters, RouterInstruments, OperatorInstruments, ScrapeInstruments,
        AnnotateInstruments, PoolGauges,
    ):  # fmt: skip
        make(recorder)
    return dict(recorder.series)
