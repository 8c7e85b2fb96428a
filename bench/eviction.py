"""What the RAM tier's policy hits of four traces, against LRU, what the tier had first, and the best possible cache.

A rate is usable hits (the front of a prompt that is present without a gap) over all blocks of prompts. The optimum
knows the future and can be reached by nobody who does not; see `tests.support.eviction.optimum`, and for what knowing
or counting documents alone would give (on the traces of nothing else) `tests.support.eviction.online`.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.report import Goal, Result
from tests.support.eviction.online import hits_of_counting, hits_of_knowing
from tests.support.eviction.optimum import optimum
from tests.support.eviction.replay import Cache, LruReplay, RamReplay
from tests.support.eviction.traces import Request, mixed, num_prompt_blocks, sessions, zipf, zipf_and_scan

_GOAL_POINTS = 5.0
_LOOK_EVERY = 50  # requests: for blocks that are present without all before them
_JUDGED = "zipf + scan"
_TRACES: dict[str, Callable[[int, int], Iterator[Request]]] = {
    "zipf": zipf,
    _JUDGED: zipf_and_scan,
    "sessions": sessions,
    "mixed": mixed,
}
_DOCUMENTS_ONLY = ("zipf", _JUDGED)
_SEEDS = (11, 12, 13, 14, 15)  # 11 and 13 were looked at while choosing; other traces than the judged one take 11


def run(quick: bool, folder: Path) -> Result:
    """Replay; a row per trace, seed and size of the tier, from a fiftieth of all blocks asked for upwards."""
    num_requests, sizes, seeds = (1000, (1000,), _SEEDS[:1]) if quick else (8000, (1000, 2000, 4000), _SEEDS)
    rows = []
    for name, trace_of in _TRACES.items():
        for seed in seeds if name == _JUDGED else seeds[:1]:
            trace = list(trace_of(num_requests, seed))
            rows += [_row(name, seed, trace, num_slots) for num_slots in sizes]
    goals = [_goal([row for row in rows if row["trace"] == _JUDGED and row["slots"] == size], size) for size in sizes]
    num_unreachable = float(max(row["unreachable"] for row in rows))
    goals.append(Goal("most blocks present but unreachable at any look", num_unreachable, 0.0, False))
    return Result("eviction", rows, goals, ("case", "policy"))


def _goal(rows: Sequence[dict[str, Any]], num_slots: int) -> Goal:
    gaps = [row["points_below_optimum"] for row in rows]
    what = f"points below the optimum on Zipf + scan, {num_slots} slots, mean of {len(gaps)} (worst {max(gaps):.1f})"
    return Goal(what, sum(gaps) / len(gaps), _GOAL_POINTS, False)


def _row(name: str, seed: int, trace: Sequence[Request], num_slots: int) -> dict[str, Any]:
    num_asked = num_prompt_blocks(trace)
    best = optimum(trace, num_slots)
    ours = RamReplay(num_slots)
    has_bounds = name in _DOCUMENTS_ONLY
    num_hits = num_unreachable = 0
    for number, request in enumerate(trace, start=1):
        num_hits += ours.serve(request)
        if number % _LOOK_EVERY == 0 or number == len(trace):
            num_unreachable = max(num_unreachable, ours.num_unreachable)
    hit_rate, best_rate = num_hits / num_asked, best.num_hits / num_asked
    rates = {
        "policy": hit_rate,
        "lru": _rate(LruReplay(num_slots), trace),
        "heated_lru": _rate(LruReplay(num_slots, num_slots / 4), trace),
        "counting": hits_of_counting(trace, num_slots) / num_asked if has_bounds else None,
        "knowing": hits_of_knowing(trace, num_slots) / num_asked if has_bounds else None,
        "optimum": best_rate,
        "unbounded": best.num_hits_unbounded / num_asked,
    }
    return {
        "case": f"{name}, {num_slots}, seed {seed}", "trace": name, "seed": seed, "slots": num_slots, **rates,
        "points_below_optimum": 100 * (best_rate - hit_rate), "unreachable": num_unreachable,
    }  # fmt: skip


def _rate(cache: Cache, trace: Sequence[Request]) -> float:
    return sum(map(cache.serve, trace)) / num_prompt_blocks(trace)
