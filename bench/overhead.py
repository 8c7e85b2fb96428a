"""What all tiers cost when nothing is reused: throughput with them against without, in interleaved pairs.

Two engines with the same settings, one attached to a sidecar with RAM, disk and a pool (every full block is copied to
RAM, hashed and sealed; RAM holds less than the run writes, so blocks go on to the disk), one alone. A pair runs the
same shape of work on both, in alternating order, on prompts nobody has seen; the other engine sleeps meanwhile. Two
shapes: prompts with short answers, counted whole, and short prompts with long answers, of which only those count.
"""

import concurrent.futures
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.prompts import unseen
from bench.report import Goal, Result, bootstrap_interval
from tests.support.pods import manifest, running_pods
from tests.support.program import Program

WITH, WITHOUT = "with tiers", "without"
CONCURRENCY = 4
GOAL = 0.97


@dataclass(frozen=True)
class _Shape:
    name: str
    goal: str
    num_pairs: int
    prompt_tokens: int
    new_tokens: int
    is_decode: bool


_MIXED = "throughput at 0 % reuse with the sidecar attached, of without (median of pairs)"
_DECODE = "decode throughput at 0 % reuse with all tiers on, of off (median of pairs)"
_FULL = (_Shape("prompts", _MIXED, 21, 384, 64, False), _Shape("decode", _DECODE, 21, 24, 128, True))
_QUICK = (_Shape("prompts", _MIXED, 3, 128, 16, False), _Shape("decode", _DECODE, 3, 24, 24, True))


def run(quick: bool, folder: Path) -> Result:
    """Measure 21 pairs of each shape; quick: 3 small ones."""
    shapes = _QUICK if quick else _FULL
    chance = random.Random(21)
    (folder / "with").mkdir()
    (folder / "without").mkdir()
    document = manifest("with", ram="128Mi" if quick else "1Gi", disk="4Gi", pool_memory="256Mi", idle_seconds=5)
    with (
        running_pods(folder / "with", document) as attached,
        running_pods(folder / "without", manifest("without", ram=None), with_sidecars=False) as alone,
    ):
        arms = {WITH: attached.engine("with-0"), WITHOUT: alone.engine("without-0")}
        speeds = {shape.name: _measure(arms, chance, shape) for shape in shapes}
        sidecar = attached.sidecar("with-0")
        stored, on_disk = (sidecar.metric("pagoda_tier_blocks", tier=tier, state="sealed") for tier in ("ram", "disk"))
        asked = sidecar.metric("pagoda_pool_operations_total", operation="probe", outcome="miss")
    assert stored > 0, "the sidecar held no block, so nothing was measured"
    assert quick or on_disk > 0, "nothing reached the disk, so it was not measured"
    assert asked > 0, "the pool was asked for nothing, so it was not measured"
    rows: list[dict[str, Any]] = []
    goals: list[Goal] = []
    notes = [
        f"blocks at the end: {stored:.0f} in RAM, {on_disk:.0f} on disk",
        f"the pool was asked for {asked:.0f} blocks that it lacked; what is seen once is not written to it",
    ]
    for shape in shapes:
        ratios = [ours / base for ours, base in zip(*speeds[shape.name].values(), strict=True)]
        low, high = bootstrap_interval(ratios)
        value = statistics.median(ratios)
        rows += [
            {"arm": f"{shape.name}, {arm}", "n": len(values), "tokens_per_second": statistics.median(values)}
            for arm, values in speeds[shape.name].items()
        ]
        notes.append(
            f"{shape.name}: ratio, median of {len(ratios)} pairs: {value:.4f}, "
            f"95 % bootstrap interval {low:.4f} to {high:.4f}"
        )
        goals.append(Goal(shape.goal, value, GOAL))
    return Result("overhead", rows, goals, ("arm", "tokens_per_second"), notes)


def _measure(arms: dict[str, Program], chance: random.Random, shape: _Shape) -> dict[str, list[float]]:
    for engine in arms.values():
        _throughput(engine, chance, shape)
    speeds: dict[str, list[float]] = {arm: [] for arm in arms}
    for pair in range(shape.num_pairs):
        for arm in list(arms) if pair % 2 == 0 else list(reversed(arms)):
            speeds[arm].append(_throughput(arms[arm], chance, shape))
    return speeds


def _throughput(engine: Program, chance: random.Random, shape: _Shape) -> float:
    """Run CONCURRENCY unseen prompts at once and return the tokens that count per second."""
    prompts = [unseen(chance, shape.prompt_tokens) for _ in range(CONCURRENCY)]

    def ask(prompt: list[int]) -> int:
        answer = engine.complete(prompt, max_tokens=shape.new_tokens, ignore_eos=True)
        assert answer.sources["compute"] == shape.prompt_tokens, answer.sources
        return (0 if shape.is_decode else shape.prompt_tokens) + int(answer.usage["completion_tokens"])

    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(CONCURRENCY) as executor:
        tokens = sum(executor.map(ask, prompts))
    return tokens / (time.perf_counter() - start)
