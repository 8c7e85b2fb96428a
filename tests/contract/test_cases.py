"""The table of cases and the tests agree: a test that is named exists, and a case that a test names is in the table."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs" / "cases.md").read_text("utf-8")
ROWS = [line for line in TABLE.splitlines() if re.match(r"\| [EK]\d+", line)]
NODES = re.findall(r"`([\w/]+\.py)::(\w+)`", TABLE)
MUST_HOLD = (
    {f"E{number}" for number in (*range(1, 8), *range(13, 18), 21, 22, 24, 25, 27, 28, 29, 30)}
    | {f"K{number}" for number in (5, 8, 9, 10, 12, 13, 14)}
)  # fmt: skip


@pytest.mark.parametrize(("path", "name"), NODES)
def test_a_test_that_the_table_names_exists(path: str, name: str) -> None:
    text = (ROOT / path).read_text("utf-8")
    assert re.search(rf"^(async def|def|class) {name}\b|^{name} = ", text, re.MULTILINE), f"{path} has no {name}"


def test_every_case_that_must_hold_has_a_test() -> None:
    assert cases_of_rows() >= MUST_HOLD


def test_every_case_that_a_test_names_is_in_the_table() -> None:
    named = set()
    for path in [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "e2e").rglob("test_*.py")]:
        for name in re.findall(r"def test_((?:[ek]\d+_)+)", path.read_text("utf-8")):
            named |= {case.upper() for case in name.strip("_").split("_")}
    assert named <= cases_of_rows()


def cases_of_rows() -> set[str]:
    rows = [row for row in ROWS if "::" in row]
    return {case for row in rows for case in re.findall(r"[EK]\d+", row.split("|")[1])}
