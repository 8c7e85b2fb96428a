"""Mean TTFT of conversations and of questions on documents, with all tiers and without any.

The conversations have LMBenchmark's shape (users that take turns, a shared system prompt, a long history per user,
short answers) scaled 1/10: 100 tokens of system prompt, 2,000 of history, answers of 10 (its 1,000, 20,000 and 100),
its 20 rounds, 4 users instead of 15. A turn adds 20 tokens; users take turns in a fixed order, with exponential gaps
between them. The documents are its RAG shape: a system prompt, three of twelve chunks of 512 tokens in a topic's
order, and a question nobody has asked, on one of six topics, drawn evenly.

Two pods with the same device, which holds little more than one user: one with RAM for half of them, disk for the rest
and a pool; one with nothing below. They take turns segment by segment, on the same prompts. First turns and first
questions on a topic are computed by both: they have a row of their own, and are in the row of all. At the end, prompts
nobody has seen on both, pair by pair: what the tiers cost where nothing is reused.

Answers enter the history as other tokens of the same number, so that both arms see the same prompts: this costs the
arm with tiers the last block of each answer.
"""

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.prompts import kv_memory, mebibytes, unseen
from bench.report import Goal, Result, bootstrap_interval
from tests.support.pods import manifest, running_pods
from tests.support.program import Program

TIERS, NONE = "tiers", "no tiers"
GAIN_GOAL, COST_GOAL = 10.0, 1.03


@dataclass(frozen=True)
class _Shape:
    num_users: int
    num_rounds: int
    system_tokens: int
    history_tokens: int
    question_tokens: int
    answer_tokens: int
    num_topics: int
    num_questions: int
    chunk_tokens: int
    num_pairs: int
    pair_tokens: int
    mean_gap_seconds: float

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        turns = self.num_rounds * (self.question_tokens + self.answer_tokens)
        return self.system_tokens + max(
            self.history_tokens + turns, _CHUNKS_PER_TOPIC * self.chunk_tokens + self.question_tokens
        )


_CHUNKS_PER_TOPIC = 3
_FULL = _Shape(4, 20, 100, 2000, 20, 10, 6, 90, 512, 16, 512, 0.3)
_QUICK = _Shape(4, 2, 32, 256, 20, 10, 5, 5, 80, 3, 128, 0.05)


@dataclass
class _Request:
    prompt: list[int]
    is_first: bool  # of its user or topic: nothing could be reused but the system prompt
    gap_seconds: float


@dataclass
class _Times:
    first: list[float] = field(default_factory=list)
    later: list[float] = field(default_factory=list)


def run(quick: bool, folder: Path) -> Result:
    """Measure the shapes of the file's head; quick: small ones, to see that it works."""
    shape = _QUICK if quick else _FULL
    device_tokens = shape.longest * 5 // 4 + 128
    limits: dict[str, Any] = {"kv_memory": kv_memory(device_tokens), "max_model_tokens": shape.longest + 64}
    tokens = shape.num_users * shape.longest
    document = manifest(
        "tiers", ram=mebibytes(tokens / 2 + 1024), disk=mebibytes(tokens * 2 + 4096), pool_memory="256Mi",
        idle_seconds=1, **limits,
    )  # fmt: skip
    for name in ("tiers", "none"):
        (folder / name).mkdir()
    with (
        running_pods(folder / "tiers", document) as with_tiers,
        running_pods(folder / "none", manifest("none", ram=None, **limits), with_sidecars=False) as without,
    ):
        engines = {TIERS: with_tiers.engine("tiers-0"), NONE: without.engine("none-0")}
        chance = random.Random(24)
        for engine in engines.values():
            _ttft(engine, unseen(chance, 32), shape)
        chats = _measure(engines, _conversations(chance, shape), shape)
        questions = _measure(engines, _questions(chance, shape), shape)
        sources = {tier: engines[TIERS].metric("pagoda_prompt_tokens_total", source=tier) for tier in _SOURCES}
        ceiling, real = (engines[TIERS].metric(f"pagoda_hit_{name}") for name in ("ceiling_ratio", "ratio"))
        costs = _cost(engines, chance, shape)
    return _result(shape, {"chat": chats, "documents": questions}, costs, sources, (real, ceiling))


_SOURCES = ("compute", "device", "ram", "disk", "pool")


def _conversations(chance: random.Random, shape: _Shape) -> Iterator[list[_Request]]:
    """Yield the rounds: in each, every user asks once."""
    system = unseen(chance, shape.system_tokens)
    histories = [system + unseen(chance, shape.history_tokens) for _ in range(shape.num_users)]
    for number in range(shape.num_rounds):
        segment = []
        for history in histories:
            history += unseen(chance, shape.question_tokens)
            segment.append(_Request(list(history), number == 0, _gap(chance, shape)))
            history += unseen(chance, shape.answer_tokens)
        yield segment


def _questions(chance: random.Random, shape: _Shape) -> Iterator[list[_Request]]:
    """Yield questions in segments of as many as there are topics: first one on each topic, then as they come."""
    system = unseen(chance, shape.system_tokens)
    chunks = [unseen(chance, shape.chunk_tokens) for _ in range(2 * shape.num_topics)]
    topics = [chance.sample(chunks, _CHUNKS_PER_TOPIC) for _ in range(shape.num_topics)]
    order = [*range(shape.num_topics), *chance.choices(range(shape.num_topics), k=shape.num_questions)]
    requests = [
        _Request(
            [*system, *(token for chunk in topics[topic] for token in chunk), *unseen(chance, shape.question_tokens)],
            number < shape.num_topics,
            _gap(chance, shape),
        )
        for number, topic in enumerate(order)
    ]
    for start in range(0, len(requests), shape.num_topics):
        yield requests[start : start + shape.num_topics]


def _measure(engines: dict[str, Program], segments: Iterator[list[_Request]], shape: _Shape) -> dict[str, _Times]:
    times = {arm: _Times() for arm in engines}
    for number, segment in enumerate(segments):
        for arm in list(engines) if number % 2 == 0 else list(reversed(engines)):
            for request in segment:
                time.sleep(request.gap_seconds)
                seconds = _ttft(engines[arm], request.prompt, shape)
                (times[arm].first if request.is_first else times[arm].later).append(seconds)
    return times


def _cost(engines: dict[str, Program], chance: random.Random, shape: _Shape) -> list[float]:
    """Return the ratios of TTFT with tiers to TTFT without, on prompts nobody has seen."""
    ratios = []
    for pair in range(shape.num_pairs):
        times = {}
        for arm in list(engines) if pair % 2 == 0 else list(reversed(engines)):
            times[arm] = _ttft(engines[arm], unseen(chance, shape.pair_tokens), shape)
        ratios.append(times[TIERS] / times[NONE])
    return ratios


def _ttft(engine: Program, prompt: Sequence[int], shape: _Shape) -> float:
    answer = engine.complete(prompt, max_tokens=shape.answer_tokens, ignore_eos=True)
    assert sum(answer.sources.values()) == len(prompt)
    return answer.ttft_seconds


def _gap(chance: random.Random, shape: _Shape) -> float:
    return chance.expovariate(1 / shape.mean_gap_seconds)


def _result(
    shape: _Shape,
    measured: dict[str, dict[str, _Times]],
    costs: Sequence[float],
    sources: dict[str, float],
    hits: tuple[float, float],
) -> Result:
    rows: list[dict[str, Any]] = []
    goals = []
    for name, times in measured.items():
        parts = {
            "first": {arm: one.first for arm, one in times.items()},
            "later": {arm: one.later for arm, one in times.items()},
            "all": {arm: one.first + one.later for arm, one in times.items()},
        }
        rows += [_row(f"{name}, {part}", values) for part, values in parts.items()]
        what = "turns of a conversation" if name == "chat" else "questions on documents"
        for part in ("all", "later"):
            value = statistics.mean(parts[part][NONE]) / statistics.mean(parts[part][TIERS])
            goals.append(Goal(f"mean TTFT without tiers, of that with tiers: {part} {what}", value, GAIN_GOAL))
    low, high = bootstrap_interval(costs)
    goals.append(
        Goal("TTFT with tiers, of that without, at 0 % reuse (median)", statistics.median(costs), COST_GOAL, False)
    )
    notes = [
        f"scaled: {shape.num_users} users, {shape.num_rounds} rounds, {shape.system_tokens} + {shape.history_tokens} "
        f"tokens and {shape.question_tokens} + {shape.answer_tokens} a round; {shape.num_topics} topics of "
        f"{_CHUNKS_PER_TOPIC} × {shape.chunk_tokens} tokens; the device holds little more than one user",
        "all requests are judged, and later ones beside them: first ones are computed by both arms, so with prompts of "
        "one length the mean of all cannot become lower than by "
        + " and ".join(
            f"{(len(one.first) + len(one.later)) / len(one.first):.0f} times ({name})"
            for name, one in ((name, times[TIERS]) for name, times in measured.items())
        ),
        "prompt tokens with tiers: " + ", ".join(f"{tier} {num:,.0f}" for tier, num in sources.items()),
        f"hit ratio {hits[0]:.3f}, ceiling {hits[1]:.3f}",
        f"0 % reuse, {len(costs)} pairs: 95 % bootstrap interval {low:.3f} to {high:.3f}",
    ]
    return Result("multi-turn", rows, goals, ("requests", "times_faster"), notes)


def _row(name: str, values: dict[str, list[float]]) -> dict[str, Any]:
    means = {arm: statistics.mean(times) for arm, times in values.items()}
    return {
        "requests": name,
        "n": len(values[TIERS]),
        "tiers_mean_ttft_ms": means[TIERS] * 1000,
        "no_tiers_mean_ttft_ms": means[NONE] * 1000,
        "times_faster": means[NONE] / means[TIERS],
    }
