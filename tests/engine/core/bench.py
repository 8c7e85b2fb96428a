"""An engine on the oracle and the fake tiers, in virtual time, moved by the test alone."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pagoda_engine.core.engine import Engine
from pagoda_engine.core.request import NewRequest, TokenEvent
from pagoda_engine.core.settings import EngineSettings
from pagoda_engine.model.interface import Sampling
from pagoda_runtime.metrics import Metrics
from tests.engine.core.fake_tiers import FakeTiers
from tests.engine.core.oracle import OracleRunner, reference


@dataclass
class Event:
    """What a sink got, per request."""

    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    sources: dict[str, int] | None = None
    error: str | None = None
    num_events: int = 0


class SteppedJob:
    """A tier job on a thread that moves only inside `advance`, from one checkpoint of the fake tiers to the next."""

    def __init__(self, kind: str, job: Callable[[], None]) -> None:
        self.kind = kind
        self.is_done = False
        self._has_begun = False
        self._go = threading.Semaphore(0)
        self._has_paused = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._main, args=(job,), daemon=True)
        self._thread.start()

    def advance(self) -> None:
        self._has_begun = True
        self._go.release()
        self._has_paused.acquire()
        if self.is_done:
            self._thread.join()

    def begin(self) -> None:
        """Let it get to its first checkpoint, if it has not."""
        if not self._has_begun:
            self.advance()

    def finish(self) -> None:
        while not self.is_done:
            self.advance()

    def pause(self) -> None:
        self._has_paused.release()
        self._go.acquire()

    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def _main(self, job: Callable[[], None]) -> None:
        self._go.acquire()
        try:
            job()
        finally:
            self.is_done = True
            self._has_paused.release()


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


SETTINGS = EngineSettings(max_model_tokens=400, max_batch_tokens=16, max_sequences=8, weigh_loads=False)


class Bench:
    """An engine in virtual time, driven by `step` and, for its tier jobs, by `jobs`."""

    def __init__(
        self, num_pages: int = 32, settings: EngineSettings = SETTINGS, tiers: FakeTiers | None = None
    ) -> None:
        self.idle_seconds = 1e6
        self.clock = Clock()
        self.runner = OracleRunner(num_pages)
        self.tiers = tiers
        self.jobs: list[SteppedJob] = []
        self.metrics = Metrics()
        self.requests: dict[str, NewRequest] = {}
        self.events: dict[str, Event] = {}
        self.engine = Engine(
            self.runner, settings, self.metrics, tiers, self.clock, self._make_workers, lambda: self.idle_seconds
        )
        self.runner.watch(self.engine)
        if tiers is not None:
            tiers.checkpoint = self._pause_current

    def submit(self, prompt: Sequence[int], max_tokens: int = 1, **other: object) -> str:
        request_id = str(other.pop("request_id", f"r{len(self.requests)}"))
        seed = int(str(other.pop("seed", 0)))
        values: dict[str, object] = {"root": bytes(32), "tenant_tag": 7, "stop_token_ids": frozenset(), **other}
        request = NewRequest(
            request_id=request_id, prompt=list(prompt), sampling=Sampling(seed=seed), max_tokens=max_tokens,
            arrival=self.clock(), **values,
        )  # type: ignore[arg-type]  # fmt: skip
        self.engine.submit(request, self._sink)
        self.requests[request_id] = request
        self.events[request_id] = Event()
        return request_id

    def step(self, num: int = 1) -> None:
        for _ in range(num):
            self.engine.step()
            self.engine.check_integrity()

    def advance_job(self, index: int = 0) -> None:
        job = self.jobs[index]
        job.advance()
        if job.is_done:
            self.jobs.remove(job)

    def finish_jobs(self, kind: str | None = None) -> None:
        for job in [job for job in self.jobs if kind in (None, job.kind)]:
            job.finish()
            self.jobs.remove(job)

    def run(self, *request_ids: str, max_steps: int = 2000) -> None:
        """Step, with tier jobs done at once, until these requests (default: all there is) have ended."""
        for _ in range(max_steps):
            self.step()
            self.finish_jobs()
            waiting = [self.events[name].finish is None for name in request_ids]
            if not any(waiting) and (request_ids or self.engine.is_idle):
                return
        raise AssertionError(f"no end in {max_steps} steps: {self.engine.stats()}")

    def complete(self, prompt: Sequence[int], max_tokens: int = 1, **other: object) -> Event:
        """Submit, run to the end, check the output; return what the sink got."""
        request_id = self.submit(prompt, max_tokens, **other)
        self.run(request_id)
        self.assert_right(request_id)
        return self.events[request_id]

    def assert_right(self, request_id: str) -> None:
        event, request = self.events[request_id], self.requests[request_id]
        assert (event.tokens, event.finish) == reference(request)
        assert event.sources is not None
        assert sum(event.sources.values()) == len(request.prompt)
        assert event.sources["compute"] >= 1

    def assert_baseline(self) -> None:
        """Nothing lives, nothing is in flight, and every page is free or cached."""
        self.engine.check_integrity()
        assert self.engine.is_idle
        stats = self.engine.stats()
        assert (stats.num_running, stats.num_waiting, stats.num_claims, stats.num_referenced) == (0, 0, 0, 0)
        assert (stats.loads_in_flight, stats.stores_in_flight) == (0, 0)
        assert stats.num_free + stats.num_cached == self.runner.facts.num_pages

    def sources(self, request_id: str) -> dict[str, int]:
        sources = self.events[request_id].sources
        assert sources is not None
        return {source: num for source, num in sources.items() if num}

    def value(self, name: str, **labels: str) -> float:
        """A metric's value, as scraped."""
        label_text = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        wanted = f"{name}{{{label_text}}} " if labels else f"{name} "
        lines = self.metrics.exposition().decode().splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(wanted)), 0.0)

    def _sink(self, token_event: TokenEvent) -> None:
        event = self.events[token_event.request_id]
        assert event.finish is None, "news after the end"
        assert (token_event.sources is not None) == (not event.tokens and bool(token_event.tokens))
        event.tokens += token_event.tokens
        event.finish, event.error = token_event.finish, token_event.error
        event.num_events += 1
        if token_event.sources is not None:
            event.sources = dict(token_event.sources)

    def _make_workers(self, name: str, num_threads: int) -> "BenchWorkers":
        return BenchWorkers(self, name)

    def _pause_current(self) -> None:
        for job in self.jobs:
            if job.is_current():
                job.pause()


class BenchWorkers:
    """Turns each submitted job into one the test advances."""

    def __init__(self, bench: Bench, kind: str) -> None:
        self._bench = bench
        self._kind = kind

    def submit(self, job: Callable[[], None]) -> None:
        self._bench.jobs.append(SteppedJob(self._kind, job))

    def stop(self, timeout_seconds: float) -> None:
        self._bench.finish_jobs(self._kind)
