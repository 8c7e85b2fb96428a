"""What each part's Dockerfile says, against what the part needs; the images themselves are looked at in `e2e/node`."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
IMAGES = REPOSITORY / "images"
PARTS = ("engine", "operator", "router", "sidecar")


def _instructions(part: str) -> list[str]:
    lines = (IMAGES / f"{part}.Dockerfile").read_text("utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("part", PARTS)
def test_an_image_is_built_by_the_parts_script_and_runs_its_program_as_nobody_in_particular(part: str) -> None:
    instructions = _instructions(part)
    assert [line for line in instructions if line.startswith("FROM")][-1] == "FROM scratch"
    assert any(line.endswith(f" /source/images/{part}.sh /rootfs") for line in instructions)
    assert instructions[-2:] == ["USER 65532:65532", f'ENTRYPOINT ["python", "-m", "pagoda_{part}"]']
    assert shutil.which(str(IMAGES / f"{part}.sh")), "the script can be executed"


@pytest.mark.parametrize("part", PARTS)
def test_a_script_lays_out_its_own_part_and_says_how_it_is_called(part: str) -> None:
    script = IMAGES / f"{part}.sh"
    assert re.search(rf"Usage: images/{part}\.sh ROOTFS", script.read_text("utf-8"))
    said = subprocess.run([script], capture_output=True, text=True, timeout=30, check=False)
    assert said.returncode == 2
    assert "usage: rootfs.py" in said.stderr


def test_docker_is_given_all_that_the_wheel_is_made_of() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {path.split("/")[0] for path in wheel["packages"]}
    needed |= {project["project"]["readme"], *project["project"]["license-files"]}
    needed |= {"pyproject.toml", "constraints.txt", "images", ".ci"}
    given = set(re.findall(r"^!(\S+)$", (REPOSITORY / ".dockerignore").read_text("utf-8"), re.MULTILINE))
    assert given == needed


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    said = subprocess.run([IMAGES / "sidecar.sh", tmp_path], capture_output=True, text=True, timeout=30, check=False)
    assert said.returncode == 1
    assert "is not empty" in said.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
