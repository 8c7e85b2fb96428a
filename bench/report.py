"""What a bench says: rows, goals, a table, a plot, and one JSON line."""

import json
import os
import platform
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Goal:
    """A floor (or ceiling) an issue set, and what was measured."""

    what: str
    value: float
    goal: float
    at_least: bool = True

    @property
    def met(self) -> bool:
        """Whether the value holds the goal."""
        return self.value >= self.goal if self.at_least else self.value <= self.goal


@dataclass(frozen=True)
class Result:
    """The outcome of one bench. Rows are flat mappings with the same keys; `plot` names the columns to draw."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    goals: Sequence[Goal]
    plot: tuple[str, str]
    notes: Sequence[str] = field(default_factory=list)


def bootstrap_interval(values: Sequence[float], draws: int = 10_000, seed: int = 1) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the median of `values`."""
    chance = random.Random(seed)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(draws))
    return medians[int(draws * 0.025)], medians[int(draws * 0.975)]


def machine() -> dict[str, Any]:
    """Return what a reader must know to place the figures."""
    model, flags = platform.processor(), ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            model = value.strip()
        elif key.strip() == "flags":
            flags = value
    wanted = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "instructions": [name for name in wanted if name in flags.split()],
        "python": platform.python_version(),
    }


def publish(result: Result, folder: Path) -> None:
    """Print the table, write table and plot into `folder`, print the JSON object as the last line."""
    folder.mkdir(parents=True, exist_ok=True)
    table = format_table(result.rows)
    print(table)
    for note in result.notes:
        print(note)
    for goal in result.goals:
        sign = "≥" if goal.at_least else "≤"
        print(f"{'met   ' if goal.met else 'MISSED'} {goal.what}: {goal.value:.3f} (goal {sign} {goal.goal})")
    (folder / f"{result.name}.md").write_text("\n".join([table, "", *result.notes, ""]))
    _draw(result, folder / f"{result.name}.png")
    goals = [
        {"what": goal.what, "value": round(goal.value, 4), "goal": goal.goal, "met": goal.met} for goal in result.goals
    ]
    print(json.dumps({"name": result.name, "machine": machine(), "rows": list(result.rows), "goals": goals}))


def format_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return `rows` as a Markdown table."""
    columns = list(rows[0])
    cells = [columns, *([_cell(row[column]) for column in columns] for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _draw(result: Result, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    label, value = result.plot
    figure, axes = pyplot.subplots(figsize=(7, 0.6 + 0.45 * len(result.rows)))
    axes.barh([str(row[label]) for row in result.rows], [float(row[value]) for row in result.rows])
    axes.invert_yaxis()
    axes.set_xlabel(value.replace("_", " "))
    axes.set_title(result.name)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
