"""What is installed is what is in the tree, and nothing in the tree shadows what Python needs."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("protocol", "runtime", "sidecar", "engine", "router", "operator", "cli")


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    (wheel,) = folder.glob("pagoda_kv-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_every_file_of_every_package(wheel_names: set[str]) -> None:
    wanted = set()
    for part in PARTS:
        for path in (ROOT / part / f"pagoda_{part}").rglob("*"):
            if path.suffix in {".py", ".pyi", ".proto", ".typed"}:
                wanted.add(str(path.relative_to(ROOT / part)))
    assert wanted, "no packages found"
    assert wanted <= wheel_names, sorted(wanted - wheel_names)


def test_the_wheel_holds_nothing_but_the_packages(wheel_names: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {f"pagoda_{part}" for part in PARTS}


def test_no_part_folder_is_a_package_that_shadows_a_module() -> None:
    assert [part for part in (*PARTS, "operator") if (ROOT / part / "__init__.py").exists()] == []


def test_tests_are_packages_all_the_way_down() -> None:
    folders = {path.parent for top in ("tests", "e2e") for path in (ROOT / top).rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_every_top_folder_has_a_readme() -> None:
    folders = [*PARTS, "tests", "e2e", "bench", "docs", "examples"]
    assert [name for name in folders if not (ROOT / name / "README.md").exists()] == []
