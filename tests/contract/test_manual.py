"""What docs/manifest.md and the examples tell people to write does what they say."""

import re
import subprocess
from pathlib import Path

import yaml

from pagoda_protocol.pool.spec import parse_pool
from pagoda_runtime.files import read_pool_secret

ROOT = Path(__file__).resolve().parents[2]
MANUAL = (ROOT / "docs" / "manifest.md").read_text("utf-8")
EXTERNAL = (ROOT / "examples" / "external.yaml").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", MANUAL, re.MULTILINE | re.DOTALL)


def test_the_least_manifest_is_one() -> None:
    pools = [document for block in blocks("yaml") if "kind" in (document := yaml.safe_load(block))]
    assert [parse_pool(document).name for document in pools] == ["chat"]


def test_the_commands_for_a_pool_secret_make_one_that_programs_take(tmp_path: Path) -> None:
    [block] = blocks("sh")
    make = [line for line in block.splitlines() if "openssl" in line]
    subprocess.run(["sh", "-ec", "\n".join(make)], cwd=tmp_path, check=True, timeout=30)
    secret, digest = read_pool_secret(tmp_path)
    assert secret != digest


def test_the_example_of_an_external_pool_gives_the_same_commands() -> None:
    [block] = blocks("sh")
    assert [line for line in block.splitlines() if f"#   {line}" not in EXTERNAL.splitlines()] == []
