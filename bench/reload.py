"""TTFT of a history of 256 to 4k tokens that comes back: from RAM, disk, pool, against computing it.

Two pods, one request at a time. A session that nobody touches is parked after a second: its blocks leave the device,
safe in RAM and on disk. So one history goes through every tier:

    compute(chat-0) → parked → ram(chat-0) → parked, RAM made anew → disk(chat-0) → pool(chat-1)

RAM is made anew by ending the sidecar, removing the arena and starting it again. All arms lie in one run. What would
come later than it is computed is computed, so a row says how much of the history its source brought.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.prompts import ask, kv_memory, reusable, unseen
from bench.report import Goal, Result
from tests.support.pods import Pods, manifest, running_pods
from tests.support.program import Answer

WAIT_SECONDS = 60.0
GOAL = 14.0


def run(quick: bool, folder: Path) -> Result:
    """Measure 3 histories of each length; quick: 1 of 256 and 512."""
    rounds, lengths = (1, (256, 512)) if quick else (3, (256, 512, 1024, 2048, 4096))
    document = manifest(
        replicas=2, kv_memory=kv_memory(lengths[-1] + 256), ram="1536Mi", disk="4Gi", pool_memory="4Gi",
        idle_seconds=1, max_model_tokens=lengths[-1] + 64,
    )  # fmt: skip
    answers: dict[tuple[int, str], list[Answer]] = {}
    chance = random.Random(24)
    with running_pods(folder, document) as pods:
        for pod in ("chat-0", "chat-1"):
            ask(pods, pod, unseen(chance, 256))
        for _ in range(rounds):
            for length in lengths:
                for arm, answer in _round(pods, unseen(chance, length)).items():
                    answers.setdefault((length, arm), []).append(answer)
    rows = [_row(length, arm, values, answers[length, "compute"]) for (length, arm), values in answers.items()]
    longest = {row["source"]: row for row in rows if row["tokens"] == lengths[-1]}
    assert all(row["share"] > 0 for row in longest.values()), longest
    what = f"TTFT of a {lengths[-1]:,}-token history from RAM, times lower than computed"
    return Result("reload", rows, [Goal(what, longest["ram"]["times_lower"], GOAL)], ("arm", "ttft_ms"))


def _row(length: int, arm: str, answers: Sequence[Answer], computed: Sequence[Answer]) -> dict[str, Any]:
    values = [answer.ttft_seconds for answer in answers]
    median = statistics.median(values)
    most = length if arm == "compute" else reusable(length)
    return {
        "arm": f"{length} {arm}",
        "tokens": length,
        "source": arm,
        "n": len(values),
        "share": statistics.median(answer.sources[arm] / most for answer in answers),
        "ttft_ms": median * 1000,
        "min_ms": min(values) * 1000,
        "max_ms": max(values) * 1000,
        "times_lower": statistics.median(answer.ttft_seconds for answer in computed) / median,
    }


def _round(pods: Pods, prompt: Sequence[int]) -> dict[str, Answer]:
    cold = ask(pods, "chat-0", prompt)
    _wait("the session to be parked", lambda: _blocks_on_device(pods) == 0)
    ram = ask(pods, "chat-0", prompt)
    _wait("the session to be parked again", lambda: _blocks_on_device(pods) == 0)
    _wait_settled(pods)
    pods.take_away("chat-0", is_disk_too=False)
    disk = ask(pods, "chat-0", prompt)
    pool = ask(pods, "chat-1", prompt)
    answers = {"compute": cold, "ram": ram, "disk": disk, "pool": pool}
    for arm, answer in answers.items():
        assert answer.sources["compute"] + (arm != "compute") * answer.sources[arm] == len(prompt), (
            arm,
            answer.sources,
        )
    return answers


def _blocks_on_device(pods: Pods) -> float:
    engine = pods.engine("chat-0")
    return engine.metric("pagoda_blocks", state="cached") + engine.metric("pagoda_blocks", state="referenced")


def _wait_settled(pods: Pods) -> None:
    """Wait until nothing more goes to disk or pool: what is parked and used twice is on its way there."""

    def held() -> tuple[float, float]:
        return pods.memcached_items(), pods.sidecar("chat-0").metric("pagoda_tier_blocks", tier="disk")

    last = (-1.0, -1.0)
    end = time.monotonic() + WAIT_SECONDS
    while (now := held()) != last and time.monotonic() < end:
        last = now
        time.sleep(1.0)


def _wait(what: str, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {WAIT_SECONDS:.0f} s for {what}")
        time.sleep(0.05)
