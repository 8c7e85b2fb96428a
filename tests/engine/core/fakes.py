"""A model whose KV is checkable, tiers whose calls stop where a test wants, and a bench that puts an engine on both.

The fake model's KV at position p is a running hash of the tokens up to p; its next token mixes the hashes of *all*
positions as it reads them from the pages. So one stale, foreign or misordered block changes the output, and before
that `run` compares every position it is about to read with what the request's own tokens say.
"""

import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from pagoda_engine.core.engine import Engine
from pagoda_engine.core.request import NewRequest, Request, TokenEvent
from pagoda_engine.core.settings import EngineSettings
from pagoda_engine.core.tiers import (
    BlockRecord,
    DigestRow,
    LoadReport,
    LoadResult,
    Part,
    StoreResult,
    TierUnavailable,
)
from pagoda_engine.model.interface import ModelFacts, Sampling, SequenceChunk
from pagoda_runtime.metrics import Metrics

BLOCK_TOKENS = 4
VOCABULARY = 50
_MASK = 2**64 - 1
_POISON = 0xDD


def running_hashes(tokens: Iterable[int]) -> list[int]:
    hashes, value = [], 0x9E3779B97F4A7C15
    for token in tokens:
        value = ((value ^ (token + 1)) * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & _MASK
        value ^= value >> 29
        hashes.append(value)
    return hashes


def next_token(hashes: Sequence[int], seed: int) -> int:
    mixed = seed
    for position, value in enumerate(hashes):
        mixed = (mixed + value * (2 * position + 1)) & _MASK
    return (mixed >> 17) % VOCABULARY


def reference(request: NewRequest) -> tuple[list[int], str]:
    """What the request must generate, whatever else happens in the engine."""
    tokens = list(request.prompt)
    generated: list[int] = []
    while True:
        token = next_token(running_hashes(tokens), request.sampling.seed)
        tokens.append(token)
        generated.append(token)
        if token in request.stop_token_ids:
            return generated, "stop"
        if len(generated) == request.max_tokens:
            return generated, "length"


class OracleViolation(BaseException):
    """No `Exception`: the engine must not be able to handle it."""


class OracleRunner:
    """Checks that what it reads is what the request's tokens say, and that nobody touches a page nobody holds."""

    def __init__(self, num_pages: int) -> None:
        self.facts = ModelFacts(
            block_tokens=BLOCK_TOKENS,
            payload_bytes=8 * BLOCK_TOKENS,
            num_pages=num_pages,
            vocab_size=VOCABULARY,
            max_position=10_000,
            kv_dtype="Float32",
            config_digest="0" * 64,
            weights_digest="0" * 64,
        )
        self.engine: Engine | None = None
        self.before_run: Callable[[Sequence[SequenceChunk]], None] = lambda chunks: None
        self.num_computed_tokens = 0
        self.steps: list[list[int]] = []  # chunk sizes of each step
        self._pages = [bytearray([_POISON]) * (8 * BLOCK_TOKENS) for _ in range(num_pages)]

    def watch(self, engine: Engine) -> None:
        self.engine = engine
        engine._residency.pages.on_free = self._poison

    def run(self, chunks: Sequence[SequenceChunk]) -> list[int | None]:
        self.before_run(chunks)
        try:
            return self._check_and_run(chunks)
        except AssertionError as error:
            raise OracleViolation(str(error)) from error

    def _check_and_run(self, chunks: Sequence[SequenceChunk]) -> list[int | None]:
        self.steps.append([len(chunk.tokens) for chunk in chunks])
        written = [page for chunk in chunks for page in chunk.pages[chunk.start // BLOCK_TOKENS :]]
        assert len(set(written)) == len(written), "two chunks of one step write the same page"
        return [self._run_one(chunk) for chunk in chunks]

    def copy_out(self, page: int, destination: memoryview) -> None:
        self._check_held(page)
        destination[:] = self._pages[page]

    def copy_in(self, page: int, source: memoryview) -> None:
        self._check_held(page)
        self._pages[page][:] = source

    def _run_one(self, chunk: SequenceChunk) -> int | None:
        request = self._request_of(chunk)
        stop = chunk.start + len(chunk.tokens)
        assert list(chunk.tokens) == request.tokens[chunk.start : stop]
        assert len(chunk.pages) == -(-stop // BLOCK_TOKENS)
        assert all(self._num_holders(page) > 0 for page in chunk.pages)
        hashes = running_hashes(request.tokens[:stop])
        read = [self._read(chunk.pages, position) for position in range(chunk.start)]
        assert read == hashes[: chunk.start], f"{request.request_id}: KV before {chunk.start} is not its own"
        for position in range(chunk.start, stop):
            self._write(chunk.pages, position, hashes[position])
        self.num_computed_tokens += len(chunk.tokens)
        if chunk.sampling is None:
            assert stop < len(request.tokens)
            return None
        assert stop == len(request.tokens)
        return next_token(read + hashes[chunk.start :], chunk.sampling.seed)

    def _request_of(self, chunk: SequenceChunk) -> Request:
        """The one that owns the page the chunk begins to write: nobody else may hold it."""
        assert self.engine is not None
        index = chunk.start // BLOCK_TOKENS
        assert all(self._num_holders(page) == 1 for page in chunk.pages[index:]), "a page is written that others hold"
        (owner,) = (request for request in self.engine._roster.running if chunk.pages[index] in request.pages[index:])
        return owner

    def _check_held(self, page: int) -> None:
        if self._num_holders(page) == 0:
            raise OracleViolation(f"page {page} is copied though nobody holds it")

    def _num_holders(self, page: int) -> int:
        assert self.engine is not None
        return self.engine._residency.pages.holders(page)

    def _read(self, pages: Sequence[int], position: int) -> int:
        return struct.unpack_from("<Q", self._pages[pages[position // BLOCK_TOKENS]], position % BLOCK_TOKENS * 8)[0]

    def _write(self, pages: Sequence[int], position: int, value: int) -> None:
        struct.pack_into("<Q", self._pages[pages[position // BLOCK_TOKENS]], position % BLOCK_TOKENS * 8, value)

    def _poison(self, page: int) -> None:
        self._pages[page][:] = bytes([_POISON]) * len(self._pages[page])


@dataclass
class Event:
    """What a sink got, per request."""

    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    sources: dict[str, int] | None = None
    error: str | None = None
    num_events: int = 0


class FakeTiers:
    """Tiers in dictionaries. Calls stop at `checkpoint` before each thing they do; faults are switches.

    `expect_present` of a store is the sidecar's: what is in RAM is not written again.
    """

    def __init__(self) -> None:
        self.attached = True
        self.on_attach: Callable[[], None] | None = None
        self.on_integrity_failure: Callable[[str, str], None] | None = None
        self.ram: dict[bytes, bytes] = {}
        self.pool: dict[bytes, bytes] = {}
        self.records: dict[bytes, BlockRecord] = {}
        self.checkpoint: Callable[[], None] = lambda: None
        self.is_failing = False
        self.is_refusing = False
        self.corrupt: set[bytes] = set()  # payloads that arrive wrong
        self.lookups: list[list[bytes]] = []
        self.loads: list[tuple[int, int]] = []
        self.stores: list[list[BlockRecord]] = []
        self.told: set[bytes] = set()  # device residency as reported
        self.rows: dict[bytes, DigestRow] = {}
        self.touched: list[bytes] = []
        self.load_reports: list[LoadReport] = []
        self.part_seconds = 0.0
        self.timeouts: list[float] = []

    def lookup(self, addresses: Sequence[bytes], timeout_seconds: float) -> list[Part]:
        self._step()
        self.lookups.append(list(addresses))
        self.timeouts.append(timeout_seconds)
        parts: list[Part] = []
        for index, address in enumerate(addresses):
            tier = "ram" if address in self.ram else "pool" if address in self.pool else None
            if tier is None:
                break
            if parts and parts[-1].tier == tier:
                parts[-1] = Part(tier, parts[-1].first, parts[-1].count + 1, self.part_seconds)
            else:
                parts.append(Part(tier, index, 1, self.part_seconds))
        return parts

    def load(
        self,
        root: bytes,
        addresses: Sequence[bytes],
        first: int,
        stop: int,
        sink: Callable[[int, memoryview], None],
        timeout_seconds: float,
        cancelled: Callable[[], bool],
    ) -> LoadResult:
        self.loads.append((first, stop))
        self.timeouts.append(timeout_seconds)
        sources: list[str] = []
        for position in range(first, stop):
            self._step()
            if cancelled():
                return LoadResult(sources, "cancelled")
            address = addresses[position]
            tier, store = ("ram", self.ram) if address in self.ram else ("pool", self.pool)
            if address not in store:
                return LoadResult(sources, "absent")
            if address in self.corrupt:
                sink(position, memoryview(b"\xbb" * len(store[address])))
                return LoadResult(sources, "integrity")
            sink(position, memoryview(store[address]))
            sources.append(tier)
        self._step()
        return LoadResult(sources, None)

    def store(
        self, blocks: Sequence[BlockRecord], source: Callable[[int, memoryview], None], timeout_seconds: float
    ) -> StoreResult:
        self._step()
        self.stores.append(list(blocks))
        stored = present = refused = 0
        for position, block in enumerate(blocks):
            if block.address in self.ram:
                present += 1
            elif self.is_refusing:
                refused += 1
            else:
                payload = bytearray(8 * BLOCK_TOKENS)
                source(position, memoryview(payload))
                self._step()
                self.ram[block.address] = bytes(payload)
                self.records[block.address] = block
                stored += 1
        return StoreResult(stored, present, refused)

    def report(
        self,
        rows: Sequence[DigestRow],
        device_added: Sequence[bytes],
        device_removed: Sequence[bytes],
        touched: Sequence[bytes],
        load: LoadReport | None,
        timeout_seconds: float,
    ) -> None:
        if self.is_failing:
            self.told.update(device_added[: len(device_added) // 2])  # a failed call may have had half its effect
            raise TierUnavailable("deadline")
        assert not set(device_added) & set(device_removed)
        self.told |= set(device_added)
        self.told -= set(device_removed)
        self.rows.update({row.digest: row for row in rows})
        self.touched += touched
        if load is not None:
            self.load_reports.append(load)

    def close(self) -> None:
        pass

    def attach_anew(self, keeps_ram: bool = True) -> None:
        """Another sidecar process: it knows nothing of the device."""
        if not keeps_ram:
            self.ram.clear()
        self.told.clear()
        self.rows.clear()
        assert self.on_attach is not None
        self.on_attach()

    def _step(self) -> None:
        self.checkpoint()
        if self.is_failing:
            raise TierUnavailable("no_sidecar")


class SteppedJob:
    """A tier job on a thread that moves only inside `advance`, from one checkpoint of the fake tiers to the next."""

    def __init__(self, kind: str, job: Callable[[], None]) -> None:
        self.kind = kind
        self.is_done = False
        self._go = threading.Semaphore(0)
        self._has_paused = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._main, args=(job,), daemon=True)
        self._thread.start()

    def advance(self) -> None:
        self._go.release()
        self._has_paused.acquire()
        if self.is_done:
            self._thread.join()

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
        self.clock = Clock()
        self.runner = OracleRunner(num_pages)
        self.tiers = tiers
        self.jobs: list[SteppedJob] = []
        self.metrics = Metrics()
        self.requests: dict[str, NewRequest] = {}
        self.events: dict[str, Event] = {}
        self.engine = Engine(self.runner, settings, self.metrics, tiers, self.clock, self._make_workers)
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
