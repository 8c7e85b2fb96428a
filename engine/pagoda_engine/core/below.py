"""The engine's half of the cache plane: loads, stores and reports over one tier client, and their threads."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from pagoda_engine.core.inbox import Inbox
from pagoda_engine.core.instruments import Instruments
from pagoda_engine.core.load_job import LoadJob
from pagoda_engine.core.loading import Loader
from pagoda_engine.core.parking import Parking
from pagoda_engine.core.reports import Reporter
from pagoda_engine.core.residency import Residency
from pagoda_engine.core.settings import EngineSettings
from pagoda_engine.core.storing import Storer
from pagoda_engine.core.throughput import Throughput
from pagoda_engine.core.tiers import LoadReport, TierClient
from pagoda_engine.core.workers import TierAccess, Workers
from pagoda_engine.model.interface import ModelRunner

_STOP_SECONDS = 5.0  # for each kind of thread


@dataclass(frozen=True)
class Surroundings:
    """What the cache plane shares with the rest of one engine."""

    runner: ModelRunner
    settings: EngineSettings
    residency: Residency
    throughput: Throughput
    instruments: Instruments
    inbox: Inbox
    clock: Callable[[], float]
    load_report: Callable[[], LoadReport]
    make_workers: Callable[[str, int], Workers]
    idle_seconds: Callable[[], float]


class Below:
    """One loader, storer, reporter and parking."""

    def __init__(self, client: TierClient, around: Surroundings) -> None:
        self.client = client
        settings, residency = around.settings, around.residency
        self._load_workers = around.make_workers("tier-load", settings.max_loads)
        self._store_workers = around.make_workers("tier-store", 1)  # one, so that parents are stored before children
        self._park_workers = around.make_workers("tier-park", 1)
        self.on_loaded: Callable[[LoadJob], None] = lambda job: None

        def access(workers: Workers, finish: Callable[[Any], None]) -> TierAccess:
            def post(job: Any) -> None:
                around.inbox.put(partial(finish, job))

            return TierAccess(client, around.runner, workers, post, around.clock)

        self.loader = Loader(
            access(self._load_workers, lambda job: self.on_loaded(job)), residency, settings, around.throughput
        )
        self.storer = Storer(
            access(self._store_workers, lambda job: self.storer.finish(job)),
            residency,
            settings,
            lambda outcome, num_blocks: around.instruments.stores.add(num_blocks, outcome=outcome),
        )
        self.reporter = Reporter(client, settings, around.load_report)
        self.reporter.on_look = around.instruments.show_attached
        self.parking = Parking(
            access(self._park_workers, lambda session: self.parking.finish(session)),
            residency.table,
            self.storer,
            around.idle_seconds,
            around.instruments,
        )
        self.parking.on_parked = self.reporter.parked
        residency.table.on_added = self.reporter.added
        residency.table.on_removed = self._removed
        residency.table.on_leaf = self.parking.touched
        client.on_integrity_failure = lambda tier, reason: around.instruments.integrity_failures.add(
            tier=tier, reason=reason
        )
        client.on_attach = lambda: self._attached(around.inbox)

    @property
    def num_in_flight(self) -> int:
        """Jobs that a tier thread is at."""
        return len(self.loader.jobs) + len(self.storer.jobs) + len(self.parking.jobs)

    def pages_in_flight(self) -> list[int]:
        """One entry for each hold of a job on a page."""
        pages = [page for job in self.loader.jobs for page in job.pages.values()]
        return pages + [block.page for job in self.storer.jobs for block in job.blocks]

    def stop_workers(self) -> None:
        """Let loads, stores and looks for idle sessions end; their last news is in the inbox when this returns."""
        self._load_workers.stop(_STOP_SECONDS)
        self._store_workers.stop(_STOP_SECONDS)
        self._park_workers.stop(_STOP_SECONDS)

    def stop_reporter(self) -> None:
        """Send a last report."""
        self.reporter.stop(_STOP_SECONDS)

    def _removed(self, address: bytes) -> None:
        self.reporter.removed(address)
        self.parking.removed(address)

    def _attached(self, inbox: Inbox) -> None:
        self.reporter.attached()
        inbox.put(self.storer.attached)
