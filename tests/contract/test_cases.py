"""The table of cases and the tests agree: each case names tests that exist, or says why there is none yet."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs" / "cases.md").read_text("utf-8")
ROWS = [line for line in TABLE.splitlines() if re.match(r"\| [EK]\d+", line)]
NODES = re.findall(r"`([\w/]+\.py)::(\w+)`", TABLE)
ALL = {f"E{number}" for number in range(1, 31)} | {f"K{number}" for number in range(1, 15)}
OPEN = {"E23", "K7", "K11"}


@pytest.mark.parametrize(("path", "name"), NODES)
def test_a_test_that_the_table_names_exists(path: str, name: str) -> None:
    text = (ROOT / path).read_text("utf-8")
    assert re.search(rf"^(async def|def|class) {name}\b|^{name} = ", text, re.MULTILINE), f"{path} has no {name}"


def test_every_case_has_a_test_but_those_that_are_open_and_say_why() -> None:
    assert cases_of_rows() == ALL - OPEN
    why = {row.split("|")[1].strip(): row.split("|")[3].strip() for row in ROWS if "::" not in row}
    assert set(why) == OPEN
    assert all(text.startswith("not yet: ") for text in why.values())


def test_every_case_that_a_test_names_is_in_the_table() -> None:
    named = set()
    for path in [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "e2e").rglob("test_*.py")]:
        for name in re.findall(r"def test_((?:[ek]\d+_)+)", path.read_text("utf-8")):
            named |= {case.upper() for case in name.strip("_").split("_")}
    assert named <= cases_of_rows()


def cases_of_rows() -> set[str]:
    rows = [row for row in ROWS if "::" in row]
    return {case for row in rows for case in re.findall(r"[EK]\d+", row.split("|")[1])}
