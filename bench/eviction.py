"""What the RAM tier's policy hits of four traces, against LRU, what the tier had first, and the best possible cache.

A rate is usable hits (the front of a prompt that is present without a gap) over all blocks of prompts. The optimum
knows the future and can be reached by nobody who does not; see `tests.support.eviction.optimum`.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.report import Goal, Result
from tests.support.eviction.optimum import optimum
from tests.support.eviction.replay import Cache, LruReplay, RamReplay
from tests.support.eviction.traces import Request, mixed, num_prompt_blocks, sessions, zipf, zipf_and_scan

_GOAL_POINTS = 5.0
_TRACES: dict[str, Callable[[int], Iterator[Request]]] = {
    "zipf": zipf,
    "zipf + scan": zipf_and_scan,
    "sessions": sessions,
    "mixed": mixed,
}


def run(quick: bool, folder: Path) -> Result:
    """Replay; a row per trace and size of the tier, the sizes from a fiftieth of all blocks asked for upwards."""
    num_requests, sizes = (2500, (2000,)) if quick else (8000, (1000, 2000, 4000))
    rows = []
    for name, trace_of in _TRACES.items():
        trace = list(trace_of(num_requests))
        rows += [_row(name, trace, num_slots) for num_slots in sizes]
    gaps = [row["points_below_optimum"] for row in rows if row["trace"] == "zipf + scan"]
    goals = [
        Goal(
            "points below the optimum on Zipf + scan, mean over the sizes", sum(gaps) / len(gaps), _GOAL_POINTS, False
        ),
        Goal("blocks present but unreachable", float(sum(row["unreachable"] for row in rows)), 0.0, False),
    ]
    return Result("eviction", rows, goals, ("case", "policy"))


def _row(name: str, trace: Sequence[Request], num_slots: int) -> dict[str, Any]:
    num_asked = num_prompt_blocks(trace)
    best = optimum(trace, num_slots)
    ours = RamReplay(num_slots)
    rates = {
        "policy": _rate(ours, trace),
        "lru": _rate(LruReplay(num_slots), trace),
        "heated_lru": _rate(LruReplay(num_slots, num_slots / 4), trace),
        "optimum": best.num_hits / num_asked,
        "unbounded": best.num_hits_unbounded / num_asked,
    }
    gap = 100 * (rates["optimum"] - rates["policy"])
    return {
        "case": f"{name}, {num_slots}", "trace": name, "slots": num_slots, **rates,
        "points_below_optimum": gap, "unreachable": ours.num_unreachable,
    }  # fmt: skip


def _rate(cache: Cache, trace: Sequence[Request]) -> float:
    return sum(map(cache.serve, trace)) / num_prompt_blocks(trace)
