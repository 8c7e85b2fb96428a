"""The short form of each bench runs to its end and says what a reader needs.

Of its figures those are judged that a busy machine cannot spoil: how often the operator writes, and its memory.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import BENCHES

ROOT = Path(__file__).resolve().parents[1]
JUDGED = ("API writes per second", "MiB of the operator")  # how such goals begin
NUM_JUDGED = {"annotations": 2, "restart": 1}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(BENCHES))
def test_the_short_form_of_a_bench_ends_with_its_goals(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", name, "--quick", "--results", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert set(last) == {"name", "machine", "rows", "goals"}
    assert last["name"] == name
    assert last["rows"]
    assert all(set(goal) == {"what", "value", "goal", "met"} for goal in last["goals"])
    judged = [goal for goal in last["goals"] if goal["what"].startswith(JUDGED)]
    assert len(judged) == NUM_JUDGED.get(name, 0)
    assert [goal for goal in judged if not goal["met"]] == []
    assert (tmp_path / f"{name}.md").stat().st_size > 0
    assert (tmp_path / f"{name}.png").stat().st_size > 0
