"""The engine: requests in, tokens out, one step after the other.

Rules:
- All state belongs to the thread that calls `step`; other threads put actions into the inbox. (Tests call `step`.)
- Nothing here blocks on a tier: loads, stores and reports have threads of their own and come back through the inbox.
- A failing step fails the requests in it and nothing else. A bug in the loop itself makes the engine unhealthy.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

from pagoda_engine.core import admission
from pagoda_engine.core.batch import Batch, Work
from pagoda_engine.core.below import Below, Surroundings
from pagoda_engine.core.ceiling import HitCeiling
from pagoda_engine.core.inbox import Inbox
from pagoda_engine.core.instruments import Instruments
from pagoda_engine.core.load_job import LoadJob
from pagoda_engine.core.request import NewRequest, Request, RequestRejected, TokenEvent, TokenSink
from pagoda_engine.core.residency import Residency
from pagoda_engine.core.roster import Roster
from pagoda_engine.core.scheduler import Limits
from pagoda_engine.core.settings import EngineSettings
from pagoda_engine.core.stats import EngineStats, take_stats
from pagoda_engine.core.supply import Supply
from pagoda_engine.core.throughput import Throughput
from pagoda_engine.core.tiers import DigestRow, TierClient
from pagoda_engine.core.workers import ThreadWorkers, Workers
from pagoda_engine.core.workload import Workload
from pagoda_engine.model.interface import ModelRunner
from pagoda_protocol.live import LiveSettings
from pagoda_runtime.metrics import Metrics

_log = logging.getLogger(__name__)

_STOP_SECONDS = 10.0  # for the step under way


class Engine:
    """Serves requests with one model. `submit`, `abort`, `report_digests` and `stats` may be called from any thread.

    The tier client stays the caller's to close, after `stop`.
    """

    def __init__(
        self,
        runner: ModelRunner,
        settings: EngineSettings,
        metrics: Metrics,
        tiers: TierClient | None,
        clock: Callable[[], float] = time.monotonic,
        make_workers: Callable[[str, int], Workers] = ThreadWorkers,
        idle_seconds: Callable[[], float] = lambda: LiveSettings().idle_seconds,
    ) -> None:
        self._runner = runner
        self._facts = runner.facts
        self._settings = settings
        self._clock = clock
        self._inbox = Inbox()
        self._orders = count()
        self._ids: set[str] = set()
        self._ids_lock = threading.Lock()
        self._state_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_broken = False
        self._instruments = Instruments(metrics, self._facts, settings)
        self._roster = Roster()
        self._throughput = Throughput()
        self._workload = Workload(self._throughput)
        self._residency = Residency(self._facts.num_pages, self._facts.block_tokens)
        self._below = None if tiers is None else self._connect(tiers, make_workers, idle_seconds)
        self._batch = self._make_batch()
        self._stats = self._take_stats()

    @property
    def max_request_tokens(self) -> int:
        """Most tokens (prompt and `max_tokens` together) that `submit` accepts."""
        return admission.max_request_tokens(self._facts, self._settings)

    @property
    def is_healthy(self) -> bool:
        """False once the loop has broken: the process should be restarted."""
        return not self._is_broken

    @property
    def is_idle(self) -> bool:
        """No request lives, and nothing is in flight to or from the tiers."""
        with self._ids_lock:
            is_free = not self._ids and not self._inbox
        return is_free and (self._below is None or not self._below.num_in_flight)

    def start(self) -> None:
        """Start the engine's thread and, with tiers, the one that reports."""
        assert self._thread is None, "an engine is started once"
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()
        if self._below is not None:
            self._below.reporter.start()

    def stop(self) -> None:
        """End all threads; requests that live end with finish "abort".

        A step that does not end in time is left to the end of the process, and its requests with it.
        """
        self._inbox.close()
        has_ended = self._join()
        if self._below is not None:
            self._below.stop_workers()
            if has_ended:
                self._handle_inbox()
            self._below.stop_reporter()
        if has_ended:
            self._show_stats()

    def submit(self, request: NewRequest, sink: TokenSink) -> None:
        """Queue a request; `sink` is called in the engine's thread (at once, with an error, if the engine has stopped).

        Raises:
            RequestRejected: no state of this engine could serve it, or another living request has its id.
        """
        try:
            admission.check(request, self._facts, self._settings)
            self._take_id(request.request_id)
        except RequestRejected:
            self._instruments.requests.add(1, outcome="rejected")
            raise
        opened = Request.open(request, sink, next(self._orders), self._facts.block_tokens)
        if not self._inbox.put_unless_closed(partial(self._roster.add, opened)):
            self._drop_id(request.request_id)
            self._instruments.requests.add(1, outcome="error")
            sink(TokenEvent(request.request_id, (), "error", error="the engine has stopped"))

    def abort(self, request_id: str) -> None:
        """End a request in any state, with finish "abort"; unknown ids are fine."""
        self._inbox.put(partial(self._abort, request_id))

    def report_digests(self, rows: Sequence[DigestRow]) -> None:
        """Queue digest rows for the sidecar."""
        if self._below is not None:
            self._below.reporter.digests(rows)

    def stats(self) -> EngineStats:
        """Return the counts at the end of the last step."""
        return self._stats

    def check_integrity(self) -> None:
        """Assert every invariant of pages, blocks, holders and claims. Any thread, not from within a sink."""
        with self._state_lock:
            in_flight = [] if self._below is None else self._below.pages_in_flight()
            self._residency.check_integrity(self._roster, in_flight)
            if self._below is not None:
                self._below.parking.check_integrity()

    def step(self) -> bool:
        """Compute one batch; return whether anything was done."""
        had_news = self._handle_inbox()
        work, has_preempted = self._schedule()
        tokens = self._run(work)
        self._postprocess(work, tokens)
        return had_news or has_preempted or bool(work)

    def _handle_inbox(self) -> bool:
        actions = self._inbox.take()
        with self._state_lock:
            for action in actions:
                action()
        return bool(actions)

    def _schedule(self) -> tuple[list[Work], bool]:
        with self._state_lock:
            if self._below is not None:
                self._below.parking.look()
            num_before = self._roster.num_preemptions
            work = self._batch.schedule()
            return work, self._roster.num_preemptions > num_before

    def _run(self, work: Sequence[Work]) -> list[int | None] | None:
        """Run the model; None if it failed."""
        if not work:
            return []
        started_at = self._clock()
        try:
            tokens = self._runner.run([item.chunk() for item in work])
        except Exception:  # noqa: BLE001 - whatever the model raised, the requests of this step end and the loop goes on
            _log.exception("a step of the model failed")
            return None
        seconds = self._clock() - started_at
        self._instruments.step.observe(seconds)
        self._throughput.record([(item.num_tokens, item.start) for item in work], seconds)
        if all(item.num_tokens == 1 for item in work):
            self._workload.record_decodes(len(work), seconds)
        return tokens

    def _postprocess(self, work: Sequence[Work], tokens: Sequence[int | None] | None) -> None:
        with self._state_lock:
            if tokens is None:
                for item in work:
                    self._batch.end(item.request, "error", error="the model failed in this request's step")
            else:
                self._batch.postprocess(work, tokens)
        self._show_stats()

    def _show_stats(self) -> None:
        self._stats = self._take_stats()
        self._instruments.show(self._stats)

    def _loop(self) -> None:
        try:
            while not self._inbox.is_closed:
                if not self.step():
                    self._inbox.wait(self._seconds_to_wait())
        except Exception:  # noqa: BLE001 - a bug of ours: nobody must wait for an answer that never comes
            _log.exception("the engine's loop broke")
            self._is_broken = True
        self._inbox.close()
        self._end_all()

    def _seconds_to_wait(self) -> float | None:
        waits = [self._batch.seconds_to_wait(), self._batch.ceiling.seconds_to_wait()]
        if self._below is not None:
            waits.append(self._below.parking.seconds_to_wait())
        return min((seconds for seconds in waits if seconds is not None), default=None)

    def _join(self) -> bool:
        """Wait for the loop's end; False if it is stuck in a step, so that all state is its own still."""
        if self._thread is None:
            self._end_all()
            return True
        self._thread.join(_STOP_SECONDS)
        if self._thread.is_alive():
            _log.error("the engine's thread does not end: stuck in a step for %g s", _STOP_SECONDS)
            return False
        return True

    def _end_all(self) -> None:
        if self._is_broken:  # no state can be trusted; tell everybody and leave the rest to the process's end
            for action in self._inbox.take():
                _attempt(action)
            for request in self._roster:
                event = TokenEvent(request.request_id, (), "error", error="the engine's loop broke")
                _attempt(partial(request.sink, event))
            return
        self._handle_inbox()
        with self._state_lock:
            for request in self._roster:
                self._batch.end(request, "abort")

    def _abort(self, request_id: str) -> None:
        if (request := self._roster.get(request_id)) is not None:
            self._batch.end(request, "abort")

    def _hear_of_load(self, job: LoadJob) -> None:
        self._batch.supply.loaded(job)

    def _take_id(self, request_id: str) -> None:
        with self._ids_lock:
            if request_id in self._ids:
                raise RequestRejected("duplicate_request_id", f"Request {request_id} is still running.", None)
            self._ids.add(request_id)

    def _drop_id(self, request_id: str) -> None:
        with self._ids_lock:
            self._ids.discard(request_id)

    def _preempted(self, request: Request) -> None:
        if self._below is not None and request.blocks:
            self._below.reporter.parked(request.blocks[-1].address)

    def _connect(
        self, tiers: TierClient, make_workers: Callable[[str, int], Workers], idle_seconds: Callable[[], float]
    ) -> Below:
        below = Below(
            tiers,
            Surroundings(
                runner=self._runner,
                settings=self._settings,
                residency=self._residency,
                throughput=self._throughput,
                instruments=self._instruments,
                inbox=self._inbox,
                clock=self._clock,
                load_report=lambda: self._stats.load_report(),
                make_workers=make_workers,
                idle_seconds=idle_seconds,
            ),
        )
        below.on_loaded = self._hear_of_load
        return below

    def _make_batch(self) -> Batch:
        below = self._below
        loader = None if below is None else below.loader
        supply = Supply(self._residency, loader, self._settings, self._instruments, self._clock)
        if below is not None:
            supply.on_touched = below.reporter.touched
            supply.on_loaded = below.storer.note_loaded
        return Batch(
            roster=self._roster,
            residency=self._residency,
            supply=supply,
            storer=None if below is None else below.storer,
            workload=self._workload,
            ceiling=HitCeiling(self._clock),
            settings=self._settings,
            limits=Limits(
                self._facts.block_tokens, self._settings.max_batch_tokens, self._settings.max_preemptions_per_step
            ),
            instruments=self._instruments,
            clock=self._clock,
            on_end=lambda request: self._drop_id(request.request_id),
            on_preempted=self._preempted,
        )

    def _take_stats(self) -> EngineStats:
        return take_stats(
            self._roster, self._residency, self._below, self._throughput, self._workload, self._batch.ceiling
        )


def _attempt(action: Callable[[], None]) -> None:
    try:
        action()
    except Exception:  # noqa: BLE001 - the loop is broken already
        _log.exception("an action failed after the engine's loop broke")
