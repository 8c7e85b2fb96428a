"""In CI nothing is skipped: what would be has failed, by the reason it gives."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SKIPPING = """
import pytest

@pytest.fixture
def tool():
    pytest.skip("no tool")

def test_by_its_fixture(tool): pass

@pytest.mark.skipif(True, reason="no mark")
def test_by_its_mark(): pass

def test_by_itself(): pytest.skip("no luck")

@pytest.mark.xfail
def test_that_is_expected_to_fail(): raise AssertionError

def test_that_runs(): pass
"""


def outcomes(folder: Path, text: str, environment: dict[str, str]) -> tuple[int, dict[str, int], str]:
    """Run these tests beside the repository's conftest; return the status, the number of each outcome, and all said."""
    shutil.copy(ROOT / "conftest.py", folder)
    (folder / "test_some.py").write_text(text, "utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
    kept = {name: value for name, value in os.environ.items() if name not in ("PAGODA_NO_SKIPS", "PYTEST_ADDOPTS")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "."],
        cwd=folder, env=kept | environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    found = re.findall(r"(\d+) (passed|failed|skipped|xfailed|error)", done.stdout.splitlines()[-1])
    return done.returncode, {name: int(number) for number, name in found}, done.stdout


def test_a_skip_is_a_failure_where_nothing_may_be_skipped(tmp_path: Path) -> None:
    status, found, said = outcomes(tmp_path, SKIPPING, {"PAGODA_NO_SKIPS": "1"})
    assert status == 1
    assert found == {"passed": 1, "xfailed": 1, "failed": 1, "error": 2}
    for reason in ("no tool", "no mark", "no luck"):
        assert f"{reason}\nPAGODA_NO_SKIPS is set" in said


def test_a_file_that_skips_itself_is_a_failure_too(tmp_path: Path) -> None:
    text = "import pytest\npytest.importorskip('no_such_module_here')\n"
    status, found, said = outcomes(tmp_path, text, {"PAGODA_NO_SKIPS": "1"})
    assert (status, found) == (2, {"error": 1})
    assert "no_such_module_here" in said


@pytest.mark.parametrize("environment", [{}, {"PAGODA_NO_SKIPS": ""}], ids=["not set", "empty"])
def test_elsewhere_who_lacks_a_tool_may_skip(tmp_path: Path, environment: dict[str, str]) -> None:
    status, found, _ = outcomes(tmp_path, SKIPPING, environment)
    assert (status, found) == (0, {"passed": 1, "xfailed": 1, "skipped": 3})


def test_ci_lets_nothing_be_skipped() -> None:
    assert "export PAGODA_NO_SKIPS=1" in (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
