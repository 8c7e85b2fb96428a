"""TTFT of a repeated 3,000-token prefix: from the device, from RAM, from the pool on another engine, and computed.

Two pods on one machine, one request at a time. A round takes one prompt nobody has seen through every place it can be
in; the device holds little more than one prompt, so another one pushes it out to RAM:

    compute(chat-0, P) → device(chat-0, P) → [filler pushes P out] → ram(chat-0, P) → pool(chat-1, P)

All arms lie in one run, interleaved round by round; the figures are medians of TTFT and their ratios.
"""

import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.prompts import BLOCK_TOKENS, ask, kv_memory, reusable, unseen
from bench.report import Goal, Result
from tests.support.pods import Pods, manifest, running_pods
from tests.support.program import Answer

PUSH_SECONDS = 60.0
GOALS = {"device": 10.0, "ram": 8.0, "pool": 5.0}


def run(quick: bool, folder: Path) -> Result:
    """Measure `rounds` prompts; quick: 2 rounds of 1,000 tokens."""
    rounds, length = (2, 1000) if quick else (5, 3000)
    document = manifest(
        replicas=2, kv_memory=kv_memory(length + 96), ram="1536Mi", pool_memory="2Gi",
        max_model_tokens=length + 64,
    )  # fmt: skip
    times: dict[str, list[float]] = {"compute": [], "device": [], "ram": [], "pool": []}
    chance = random.Random(20)
    with running_pods(folder, document) as pods:
        ask(pods, "chat-0", unseen(chance, 64))
        ask(pods, "chat-1", unseen(chance, 64))
        for _ in range(rounds):
            for arm, seconds in _round(pods, chance, length).items():
                times[arm].append(seconds)
    base = statistics.median(times["compute"])
    rows: list[dict[str, Any]] = [
        {
            "source": arm,
            "prompt_tokens": length,
            "n": len(values),
            "ttft_ms": statistics.median(values) * 1000,
            "min_ms": min(values) * 1000,
            "max_ms": max(values) * 1000,
            "times_faster": base / statistics.median(values),
        }
        for arm, values in times.items()
    ]
    goals = [
        Goal(
            f"TTFT of a repeated {length:,}-token prefix from {arm}, times lower than computed",
            row["times_faster"],
            goal,
        )
        for row in rows
        for arm, goal in GOALS.items()
        if row["source"] == arm
    ]
    return Result("reuse", rows, goals, ("source", "ttft_ms"))


def _round(pods: Pods, chance: random.Random, length: int) -> dict[str, float]:
    prompt = unseen(chance, length)
    cold = ask(pods, "chat-0", prompt)
    assert cold.sources["compute"] == length, cold.sources
    reused = reusable(length)
    device = ask(pods, "chat-0", prompt)
    assert device.sources["device"] == reused, device.sources
    filler = ask(pods, "chat-0", unseen(chance, length))
    assert filler.sources["compute"] == length, filler.sources
    ram = ask(pods, "chat-0", prompt)
    assert ram.sources["ram"] + ram.sources["device"] == reused, ram.sources
    assert ram.sources["ram"] >= reused * 0.8, ram.sources
    pool = _ask_from_pool(pods, prompt, reused)
    return {
        "compute": (cold.ttft_seconds + filler.ttft_seconds) / 2,
        "device": device.ttft_seconds,
        "ram": ram.ttft_seconds,
        "pool": pool.ttft_seconds,
    }


def _ask_from_pool(pods: Pods, prompt: Sequence[int], reused: int) -> Answer:
    """Ask the other pod once every block has been pushed: it must find all of them in the pool."""
    end = time.monotonic() + PUSH_SECONDS
    stored = -1.0
    while time.monotonic() < end:
        now = pods.memcached_items()
        if now == stored and now * BLOCK_TOKENS >= reused:
            break
        stored = now
        time.sleep(0.5)
    answer = ask(pods, "chat-1", prompt)
    assert answer.sources["pool"] == reused, answer.sources
    return answer
