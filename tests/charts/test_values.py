"""values.yaml, values.schema.json and the README know the same values; e2e/charts, that templates use them."""

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts import generate
from pagoda_protocol.pool.spec import parse_pool

CHART = generate.CHART
VALUES = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text("utf-8"))
# Where the keys are not ours to know: labels and the like, resources' names, objects that Kubernetes checks itself.
OPEN = {"strings", "kubernetes", "resources"}


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    return SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every schema under `schema` with the path of the value that it is about."""
    yield path, schema
    for name, child in resolved(schema).get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}".lstrip("."))
    if "items" in resolved(schema):
        yield from nodes(resolved(schema)["items"], f"{path}[]")


def leaves(values: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of values, down to where the schema stops knowing keys."""
    known = dict(nodes(SCHEMA))[path]
    if isinstance(values, dict) and "properties" in resolved(known):
        for name, child in values.items():
            yield from leaves(child, f"{path}.{name}".lstrip("."))
    else:
        yield path


def test_no_object_of_the_schema_takes_a_key_that_it_does_not_know() -> None:
    checked = 0
    for path, schema in nodes(SCHEMA):
        if resolved(schema).get("type") == "object" and path != "global":
            name = schema.get("$ref", "").rpartition("/")[2]
            assert name in OPEN or resolved(schema).get("additionalProperties") is False, path
            checked += 1
    assert checked > 20


def test_the_schema_knows_every_value_and_no_other() -> None:
    known = {path for path, schema in nodes(SCHEMA) if "properties" not in resolved(schema) and "[]" not in path}
    assert known - {"global"} - {path for path in known if path.startswith("operator.affinity.")} == set(
        leaves(VALUES)
    ) - {"operator.affinity"}


def test_every_value_is_documented() -> None:
    documented = {value.path for value in generate.values()}
    assert {
        path for path in leaves(VALUES) if not any(path == d or path.startswith(f"{d}.") for d in documented)
    } == set()
    for value in generate.values():
        assert value.documentation.endswith("."), f"{value.path}: a sentence, please"


def test_a_value_without_a_comment_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "values.yaml").write_text("# Said.\nsaid: 1\ngroup:\n  unsaid: 2\n", "utf-8")
    monkeypatch.setattr(generate, "CHART", tmp_path)
    with pytest.raises(ValueError, match=r"group\.unsaid has no comment"):
        generate.values()


@pytest.mark.parametrize("path", generate.outputs(), ids=lambda path: str(path.relative_to(generate.CHARTS)))
def test_a_generated_file_is_as_it_would_be_generated_now(path: Path) -> None:
    assert path.read_text("utf-8") == generate.outputs()[path], f"{path} is stale: run `make generate`"


def test_the_pages_about_the_charts_link_to_pages_that_are_there() -> None:
    docs = CHART.parents[1] / "docs"
    for page in (CHART / "README.md", generate.CHARTS / "pagoda-crds" / "README.md", *docs.glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


# Bytes of KV of one token of the model that our own manifests use: keys and values of 30 layers and 3 heads of 64 fp32.
TOKEN_BYTES = 2 * 30 * 3 * 64 * 4


def test_the_pool_in_the_notes_has_room_for_a_request_of_full_length() -> None:
    notes = (CHART / "templates" / "NOTES.txt").read_text("utf-8")
    manifest = textwrap.dedent(notes.partition("<<YAML\n")[2].partition("  YAML\n")[0])
    pool = parse_pool(yaml.safe_load(manifest))
    assert pool.engine.kv_cache.memory_bytes >= pool.engine.limits.max_model_tokens * TOKEN_BYTES
    assert pool.engine.resources.memory_bytes >= pool.engine.kv_cache.memory_bytes + 1024**3
