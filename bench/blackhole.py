"""What a pool costs that accepts connections and never answers: TTFT against an engine that has no pool at all.

Two pods with the same settings but for the pool; memcached is stopped by SIGSTOP before the first pair. Prompts nobody
has seen, so that every one of them would be looked for below. The first request meets the dead node (one deadline);
the later ones must not notice it any more.
"""

import random
import signal
import statistics
from collections.abc import Sequence
from pathlib import Path

from bench.prompts import unseen
from bench.report import Goal, Result, bootstrap_interval
from tests.support.pods import manifest, running_pods
from tests.support.program import Program

GOAL = 1.1


def run(quick: bool, folder: Path) -> Result:
    """Measure 16 pairs of 512 tokens; quick: 3 pairs of 128."""
    num_pairs, length = (3, 128) if quick else (16, 512)
    chance = random.Random(22)
    (folder / "dead").mkdir()
    (folder / "none").mkdir()
    with (
        running_pods(folder / "dead", manifest("dead", ram="1Gi", pool_memory="256Mi")) as dead,
        running_pods(folder / "none", manifest("none", ram="1Gi")) as none,
    ):
        arms = {"black-holed pool": dead.engine("dead-0"), "no pool": none.engine("none-0")}
        for engine in arms.values():
            _ttft(engine, unseen(chance, length))
        node = dead.memcached()
        node.signal(signal.SIGSTOP)
        try:
            first = _ttft(arms["black-holed pool"], unseen(chance, length))
            times: dict[str, list[float]] = {arm: [] for arm in arms}
            for pair in range(num_pairs):
                for arm in list(arms) if pair % 2 == 0 else list(reversed(arms)):
                    times[arm].append(_ttft(arms[arm], unseen(chance, length)))
        finally:
            node.signal(signal.SIGCONT)
    ratios = [ours / base for ours, base in zip(times["black-holed pool"], times["no pool"], strict=True)]
    low, high = bootstrap_interval(ratios)
    value = statistics.median(ratios)
    rows = [
        {"arm": arm, "n": len(values), "ttft_ms": statistics.median(values) * 1000} for arm, values in times.items()
    ]
    rows.insert(0, {"arm": "the request that meets the black hole", "n": 1, "ttft_ms": first * 1000})
    note = f"ratio, median of {num_pairs} pairs: {value:.3f}, 95 % bootstrap interval {low:.3f} to {high:.3f}"
    goal = Goal("TTFT with a black-holed pool after the first deadline, of TTFT without a pool", value, GOAL, False)
    return Result("blackhole", rows, [goal], ("arm", "ttft_ms"), [note])


def _ttft(engine: Program, prompt: Sequence[int]) -> float:
    answer = engine.complete(prompt, max_tokens=2, ignore_eos=True)
    assert answer.sources["compute"] == len(prompt), answer.sources
    return answer.ttft_seconds
