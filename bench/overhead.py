"""What the sidecar costs when nothing is reused: throughput with it attached against without, in interleaved pairs.

Two engines with the same settings, one attached to a sidecar (every full block is copied to RAM, hashed and sealed),
one alone. A pair runs the same shape of work on both, in alternating order, on prompts nobody has seen; the other
engine sleeps meanwhile.
"""

import concurrent.futures
import random
import statistics
import time
from pathlib import Path

from bench.report import Goal, Result, bootstrap_interval
from tests.support.pods import manifest, running_pods
from tests.support.program import Program

VOCABULARY = range(1000, 40000)
CONCURRENCY = 4
GOAL = 0.97


def run(quick: bool, folder: Path) -> Result:
    """Measure 21 pairs; quick: 3 small ones."""
    num_pairs, prompt_tokens, new_tokens = (3, 128, 16) if quick else (21, 384, 64)
    chance = random.Random(21)
    ratios: list[float] = []
    speeds: dict[str, list[float]] = {"with sidecar": [], "without": []}
    (folder / "with").mkdir()
    (folder / "without").mkdir()
    with (
        running_pods(folder / "with", manifest("with", ram="2Gi")) as attached,
        running_pods(folder / "without", manifest("without", ram=None), with_sidecars=False) as alone,
    ):
        arms = {"with sidecar": attached.engine("with-0"), "without": alone.engine("without-0")}
        for engine in arms.values():
            _throughput(engine, chance, prompt_tokens, new_tokens)
        for pair in range(num_pairs):
            order = list(arms) if pair % 2 == 0 else list(reversed(arms))
            for arm in order:
                speeds[arm].append(_throughput(arms[arm], chance, prompt_tokens, new_tokens))
            ratios.append(speeds["with sidecar"][-1] / speeds["without"][-1])
        stored = attached.sidecar("with-0").metric("pagoda_tier_blocks", tier="ram")
    assert stored > 0, "the sidecar held no block, so nothing was measured"
    low, high = bootstrap_interval(ratios)
    rows = [
        {"arm": arm, "n": len(values), "tokens_per_second": statistics.median(values)} for arm, values in speeds.items()
    ]
    value = statistics.median(ratios)
    note = f"ratio, median of {num_pairs} pairs: {value:.4f}, 95 % bootstrap interval {low:.4f} to {high:.4f}"
    goal = Goal("throughput at 0 % reuse with the sidecar attached, of without (median of pairs)", value, GOAL)
    return Result("overhead", [*rows], [goal], ("arm", "tokens_per_second"), [note])


def _throughput(engine: Program, chance: random.Random, prompt_tokens: int, new_tokens: int) -> float:
    """Run CONCURRENCY unseen prompts at once and return tokens (prompt and answer) per second."""
    prompts = [[chance.choice(VOCABULARY) for _ in range(prompt_tokens)] for _ in range(CONCURRENCY)]

    def ask(prompt: list[int]) -> int:
        answer = engine.complete(prompt, max_tokens=new_tokens, ignore_eos=True)
        assert answer.sources["compute"] == prompt_tokens, answer.sources
        return prompt_tokens + int(answer.usage["completion_tokens"])

    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(CONCURRENCY) as executor:
        tokens = sum(executor.map(ask, prompts))
    return tokens / (time.perf_counter() - start)
