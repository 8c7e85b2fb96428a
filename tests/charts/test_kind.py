"""The charts carry the kind of crds/, and what they carried before is never taken away."""

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts import generate

CRD = yaml.safe_load((generate.CRDS / "pagoda-kv.io_inferencepools.yaml").read_text("utf-8"))
PREVIOUS = sorted((Path(__file__).parent / "previous").glob("pagoda-*.tgz"))


def kind_in(template: str) -> dict[str, Any]:
    """Return the CRD in a chart's template."""
    return yaml.safe_load(re.sub(r"\{\{.*?\}\}", "", template))


def kind_of(chart: Path) -> dict[str, Any]:
    """Return the CRD in a packaged chart."""
    with tarfile.open(chart) as archive:
        file = archive.extractfile("pagoda/templates/crds.yaml")
        assert file is not None
        return kind_in(file.read().decode())


def fields(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the path of every field of a schema."""
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from fields(child, f"{path}.{name}")
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            yield from fields(schema[inner], f"{path}[]")


def versions(crd: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {version["name"]: version for version in crd["spec"]["versions"]}


@pytest.mark.parametrize(
    "template", ["pagoda/templates/crds.yaml", "pagoda-crds/templates/pagoda-kv.io_inferencepools.yaml"]
)
def test_a_chart_carries_the_kind_as_it_is_with_the_policy_to_keep_it(template: str) -> None:
    carried = kind_in((generate.CHARTS / template).read_text("utf-8"))
    assert carried["spec"] == CRD["spec"]
    assert carried["metadata"]["name"] == CRD["metadata"]["name"]
    assert carried["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


@pytest.mark.parametrize("chart", PREVIOUS, ids=lambda chart: chart.stem)
def test_versions_and_fields_of_the_kind_are_only_ever_added(chart: Path) -> None:
    before, now = versions(kind_of(chart)), versions(CRD)
    assert before.keys() <= now.keys()
    for name, version in before.items():
        assert not version["served"] or now[name]["served"], f"{name} is not served any more"
        old, new = (set(fields(each["schema"]["openAPIV3Schema"])) for each in (version, now[name]))
        assert old, "the schema has no fields"
        assert old - new == set(), f"fields of {name} have gone: pools that have them would lose them"


def test_there_is_a_previous_chart_to_compare_with() -> None:
    assert PREVIOUS
