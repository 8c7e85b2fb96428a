"""TTFT of a history of 256 to 4k tokens that comes back: from RAM, disk, pool, against computing it.

Two pods, one request at a time. A session that nobody touches is parked after a second: its blocks leave the device,
safe in RAM and on disk. So one history goes through every tier:

    compute(chat-0) → parked → ram(chat-0) → parked, RAM made anew → disk(chat-0) → pool(chat-1)

RAM is made anew by ending the sidecar, removing the arena and starting it again. All arms lie in one run.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.report import Goal, Result
from tests.support.pods import Pods, manifest, running_pods
from tests.support.program import Answer

BLOCK_TOKENS = 16
KV_BYTES_PER_TOKEN = 46080  # fp32: 30 layers, keys and values, 3 heads of 64
VOCABULARY = range(1000, 40000)
TIERS = ("ram", "disk", "pool")
WAIT_SECONDS = 60.0
GOAL = 14.0


def run(quick: bool, folder: Path) -> Result:
    """Measure 3 histories of each length; quick: 1 of 256 and 512."""
    rounds, lengths = (1, (256, 512)) if quick else (3, (256, 512, 1024, 2048, 4096))
    kv_bytes = (lengths[-1] + 256) * KV_BYTES_PER_TOKEN
    document = manifest(
        replicas=2, kv_memory=f"{kv_bytes >> 20}Mi", ram="1536Mi", disk="4Gi", pool_memory="4Gi", idle_seconds=1,
        max_model_tokens=lengths[-1] + 64,
    )  # fmt: skip
    times: dict[tuple[int, str], list[float]] = {}
    chance = random.Random(24)
    with running_pods(folder, document) as pods:
        for pod in ("chat-0", "chat-1"):
            _ask(pods, pod, _prompt(chance, 256))
        for _ in range(rounds):
            for length in lengths:
                for arm, seconds in _round(pods, _prompt(chance, length)).items():
                    times.setdefault((length, arm), []).append(seconds)
    rows = [_row(length, arm, values, times[length, "compute"]) for (length, arm), values in times.items()]
    longest = {row["source"]: row for row in rows if row["tokens"] == lengths[-1]}
    what = f"TTFT of a {lengths[-1]:,}-token history from RAM, times lower than computed"
    return Result("reload", rows, [Goal(what, longest["ram"]["times_lower"], GOAL)], ("arm", "ttft_ms"))


def _row(length: int, arm: str, values: Sequence[float], computed: Sequence[float]) -> dict[str, Any]:
    median = statistics.median(values)
    return {
        "arm": f"{length} {arm}",
        "tokens": length,
        "source": arm,
        "n": len(values),
        "ttft_ms": median * 1000,
        "min_ms": min(values) * 1000,
        "max_ms": max(values) * 1000,
        "times_lower": statistics.median(computed) / median,
    }


def _round(pods: Pods, prompt: Sequence[int]) -> dict[str, float]:
    # A cap: the last block of a prompt is never wholly reused, since its last token is always computed.
    reused = (len(prompt) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    cold = _ask(pods, "chat-0", prompt)
    assert cold.sources["compute"] == len(prompt), cold.sources
    _wait("the session to be parked", lambda: _blocks_on_device(pods) == 0)
    ram = _ask(pods, "chat-0", prompt)
    assert ram.sources["ram"] == reused, ram.sources
    _wait("the session to be parked again", lambda: _blocks_on_device(pods) == 0)
    _wait_settled(pods)
    _make_ram_anew(pods)
    disk = _ask(pods, "chat-0", prompt)
    assert disk.sources["disk"] == reused, disk.sources
    pool = _ask(pods, "chat-1", prompt)
    assert pool.sources["pool"] == reused, pool.sources
    answers = {"compute": cold, "ram": ram, "disk": disk, "pool": pool}
    return {arm: answer.ttft_seconds for arm, answer in answers.items()}


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


def _make_ram_anew(pods: Pods) -> None:
    sidecar, engine = pods.sidecar("chat-0"), pods.engine("chat-0")
    argv = list(sidecar.command.argv)
    sidecar.stop()
    (Path(argv[argv.index("--volume") + 1]) / "arena").unlink()
    sidecar.start()
    sidecar.wait_ready("/health")
    _wait("the engine to attach", lambda: engine.metric("pagoda_tier_attached") == 1)
    _wait("a RAM tier", lambda: sidecar.metric("pagoda_tier_blocks", tier="ram", state="free") > 0)


def _wait(what: str, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {WAIT_SECONDS:.0f} s for {what}")
        time.sleep(0.05)


def _prompt(chance: random.Random, length: int) -> list[int]:
    return [chance.choice(VOCABULARY) for _ in range(length)]


def _ask(pods: Pods, pod: str, prompt: Sequence[int]) -> Answer:
    answer = pods.engine(pod).complete(prompt, max_tokens=2, ignore_eos=True)
    assert sum(answer.sources.values()) == len(prompt)
    pods.wait_idle(pod)
    return answer
