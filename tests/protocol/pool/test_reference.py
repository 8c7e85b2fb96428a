"""docs/manifest.md names exactly the fields that the parser knows, each with its true default."""

import re
from pathlib import Path

import pytest
import yaml

from pagoda_protocol.pool.spec import SpecError, parse_pool
from tests.protocol.pool.manifests import changed

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "manifest.md"
KEY = re.compile(r'"[^"]+"|[^.]+')
ROW = re.compile(r"^\| `([A-Za-z.\"/]+)` \| (.+?) \| .+ \|$", re.MULTILINE)
NOBODY = "zzzzzzzzzzzz"


def documented() -> dict[str, str]:
    """The default of each field as the reference writes it, by the field's path, separated by spaces."""
    rows = ROW.findall(REFERENCE.read_text("utf-8"))
    return {" ".join(["spec", *(key.strip('"') for key in KEY.findall(path))]): default for path, default in rows}


def known_fields(path: str) -> list[str] | None:
    """What the mapping at `path` may hold, as the parser says when it refuses a name; None if there is no mapping."""
    with pytest.raises(SpecError) as refused:
        parse_pool(changed(path, {NOBODY: 1}))
    said = [error.split("known here: ") for error in refused.value.errors if f".{NOBODY}: unknown" in error]
    return said[0][1].split(", ") if said else None


def leaves(path: str) -> list[str]:
    """Every field at and below `path` that is no mapping."""
    known = known_fields(path)
    if known is None or path.startswith("spec engine podTemplate "):  # below it fields are Kubernetes' own
        return [path]
    return [leaf for key in known for leaf in leaves(f"{path} {key}")]


def test_the_reference_names_every_field_and_no_other() -> None:
    assert documented().keys() == set(leaves("spec"))


def test_each_default_of_the_reference_is_the_parsers() -> None:
    base = changed("spec cache pool managed memoryPerReplica", "64Mi")
    said = {path: yaml.safe_load(default.strip("`")) for path, default in documented().items() if default[0] == "`"}
    assert len(said) > 8
    for path, value in said.items():
        assert parse_pool(changed(path, value, base)) == parse_pool(base), path
