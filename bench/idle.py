"""How many idle sessions one small device carries with tiers and without, and how fast they come back.

A session is one prompt that nobody has seen; the device holds two of them. Each is asked once, then left alone; with
tiers it is parked after a second (RAM holds a third of all, the disk the rest). Later each comes back with a few more
tokens. It was *carried* when at least 90 % of its tokens were found, wherever they were.

- With tiers the sessions come back in random order. Between them prompts nobody has seen are computed, for the ratio.
- Without tiers they come back newest first, the best order for a device that drops the oldest. Eight sessions are
  enough there: what the device drops is gone, however many there were.
"""

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.prompts import kv_memory, mebibytes, unseen
from bench.report import Goal, Result, bootstrap_interval
from tests.support.pods import Pods, manifest, running_pods
from tests.support.program import Answer, Program

MORE_TOKENS = 16
CARRIED_SHARE = 0.9
IDLE_SECONDS = 1
PARK_SECONDS = 60.0
SESSIONS_GOAL, RESUME_GOAL = 20.0, 0.2


@dataclass(frozen=True)
class _Shape:
    length: int
    num_sessions: int  # with tiers
    num_sessions_alone: int
    num_recomputes: int


def run(quick: bool, folder: Path) -> Result:
    """Measure 44 sessions of 2,048 tokens; quick: 12 of 256, too few for the goal."""
    shape = _Shape(256, 12, 4, 3) if quick else _Shape(2048, 44, 8, 9)
    device = kv_memory(2 * (shape.length + 64) + 16)
    limits: dict[str, Any] = {"kv_memory": device, "max_model_tokens": shape.length + 64}
    chance = random.Random(23)
    (folder / "alone").mkdir()
    (folder / "tiers").mkdir()
    with running_pods(folder / "alone", manifest("alone", ram=None, **limits), with_sidecars=False) as pods:
        num_alone, made_alone = _carried_alone(pods.engine("alone-0"), chance, shape)
    tokens = shape.num_sessions * shape.length
    document = manifest(
        "tiers", ram=mebibytes(tokens / 3), disk=mebibytes(tokens * 1.5 + 4096), idle_seconds=IDLE_SECONDS, **limits
    )
    with running_pods(folder / "tiers", document) as pods:
        back, recomputes, num_parked = _come_back(pods, chance, shape)
    return _result(shape, num_alone, made_alone, back, recomputes, num_parked)


def _carried_alone(engine: Program, chance: random.Random, shape: _Shape) -> tuple[int, list[float]]:
    _ask(engine, unseen(chance, 32))
    sessions = [unseen(chance, shape.length) for _ in range(shape.num_sessions_alone)]
    times = [_ask(engine, session).ttft_seconds for session in sessions]
    answers = [_ask(engine, session + unseen(chance, MORE_TOKENS)) for session in reversed(sessions)]
    return sum(_is_carried(answer, shape) for answer in answers), times


def _come_back(pods: Pods, chance: random.Random, shape: _Shape) -> tuple[list[Answer], list[float], float]:
    engine = pods.engine("tiers-0")
    _ask(engine, unseen(chance, 32))
    sessions = [unseen(chance, shape.length) for _ in range(shape.num_sessions)]
    for session in sessions:
        _ask(engine, session)
    num_parked = _wait_parked(engine)
    chance.shuffle(sessions)
    every = max(1, shape.num_sessions // shape.num_recomputes)
    back: list[Answer] = []
    recomputes: list[float] = []
    for index, session in enumerate(sessions):
        back.append(_ask(engine, session + unseen(chance, MORE_TOKENS)))
        if index % every == 0 and len(recomputes) < shape.num_recomputes:
            cold = _ask(engine, unseen(chance, shape.length + MORE_TOKENS))
            assert cold.sources["compute"] == shape.length + MORE_TOKENS, cold.sources
            recomputes.append(cold.ttft_seconds)
    return back, recomputes, num_parked


def _wait_parked(engine: Program) -> float:
    """Wait until the device is empty; return how many sessions were parked. (Others were evicted before.)"""
    end = time.monotonic() + PARK_SECONDS
    while engine.metric("pagoda_blocks", state="free") < engine.metric("pagoda_blocks") and time.monotonic() < end:
        time.sleep(0.2)
    return engine.metric("pagoda_parked_sessions_total")


def _is_carried(answer: Answer, shape: _Shape) -> bool:
    return sum(answer.sources.values()) - answer.sources["compute"] >= CARRIED_SHARE * shape.length


def _ask(engine: Program, prompt: Sequence[int]) -> Answer:
    answer = engine.complete(prompt, max_tokens=2, ignore_eos=True)
    assert sum(answer.sources.values()) == len(prompt)
    return answer


def _result(
    shape: _Shape,
    num_alone: int,
    made_alone: Sequence[float],
    back: Sequence[Answer],
    recomputes: Sequence[float],
    num_parked: float,
) -> Result:
    carried = [answer for answer in back if _is_carried(answer, shape)]
    base = statistics.median(recomputes)
    shares = [answer.ttft_seconds / base for answer in carried] or [1.0]
    low, high = bootstrap_interval(shares)
    rows: list[dict[str, Any]] = [
        _row("computed anew, with tiers", recomputes, base),
        _row("computed, without tiers", made_alone, base),
        _row("came back to tiers, all carried", [answer.ttft_seconds for answer in carried], base),
    ]
    for tier in ("device", "ram", "disk"):
        times = [answer.ttft_seconds for answer in carried if _main_source(answer) == tier]
        rows.append(_row(f"of them mostly from {tier}", times, base))
    tokens = {tier: sum(answer.sources[tier] for answer in back) for tier in ("device", "ram", "disk", "compute")}
    notes = [
        f"{len(carried)} of {len(back)} sessions of {shape.length:,} tokens carried with tiers, {num_alone} of "
        f"{shape.num_sessions_alone} without; {num_parked:.0f} left the device by being idle, the others by eviction",
        "tokens of the sessions that came back, by source: "
        + ", ".join(f"{tier} {num:,}" for tier, num in tokens.items()),
        f"TTFT of a session that comes back, of computing it: median {statistics.median(shares):.3f}, "
        f"95 % bootstrap interval {low:.3f} to {high:.3f}",
    ]
    goals = [
        Goal("idle sessions carried with tiers, times those without", len(carried) / max(1, num_alone), SESSIONS_GOAL),
        Goal(
            f"TTFT of a parked session at {shape.length:,} tokens, of computing it (medians)",
            statistics.median(shares), RESUME_GOAL, at_least=False,
        ),
    ]  # fmt: skip
    return Result("idle", rows, goals, ("arm", "ttft_ms"), notes)


def _main_source(answer: Answer) -> str:
    return max(("device", "ram", "disk"), key=lambda tier: answer.sources[tier])


def _row(arm: str, times: Sequence[float], base: float) -> dict[str, Any]:
    median = statistics.median(times) if times else 0.0
    return {"arm": arm, "n": len(times), "ttft_ms": median * 1000, "of_computing": median / base}
