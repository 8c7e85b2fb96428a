"""Make docs/reference.md from the CRD: `make generate` writes it, a test says when it is stale."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crds.schema import Field, Schema, fields, load, version

FILE = Path(__file__).resolve().parents[1] / "docs" / "reference.md"
_HEAD = """\
# Every field of an InferencePool

Made from `crds/pagoda-kv.io_inferencepools.yaml` by `make generate`; write there, not here. \
[The manifest](manifest.md) tells how to use them. In a cluster `kubectl explain pgp.spec` says the same.

`apiVersion: pagoda-kv.io/v1alpha1`, `kind: InferencePool`. `metadata.name` has at most 40 lower-case letters, digits \
and dashes, a letter first and no dash last, because Services and pods are named after it. Sizes are written as in \
Kubernetes: `512Mi`, `8Gi`, or bytes. A field that is not here is refused."""
_STATUS = "Written by the operator. What is not known is absent, which is not zero."
_COLUMNS = "What `kubectl get pgp` prints; REASON with `-o wide`."
_TABLE = "| field | type | default | what it says |\n| --- | --- | --- | --- |"
_LONG = "podTemplate"
_SIZE = re.compile("give a size from (.*) to (.*)")


def render() -> str:
    """Return the page."""
    only = version(load())
    properties = only["schema"]["openAPIV3Schema"]["properties"]
    parts = [_HEAD, *_spec(properties["spec"]), "## status", _STATUS, _table(fields(properties["status"], ("status",)))]
    parts += ["## The columns", _COLUMNS, "| column | what it shows |\n| --- | --- |"]
    rows = (f"| {column['name'].upper()} | {column.get('description', 'Time since it was made.')} |"
            for column in only["additionalPrinterColumns"])  # fmt: skip
    return "\n\n".join(parts) + "\n" + "\n".join(rows) + "\n"


def _spec(spec: Schema) -> Iterator[str]:
    alone = [field for field in fields(spec, ("spec",)) if len(field.keys) == 2 and "properties" not in field.schema]
    yield "## spec"
    yield _table(iter(alone))
    for key, child in spec["properties"].items():
        if "properties" in child:
            yield from _section(("spec", key), child)


def _section(keys: tuple[str, ...], schema: Schema) -> Iterator[str]:
    """Yield a heading, the rules and the table of one part; podTemplate, which is long, has a section of its own."""
    own, apart = [], []
    for field in fields(schema, keys):
        (apart if _LONG in field.keys and field.keys[-1] != _LONG else own).append(field)
    yield f"## {'.'.join(keys)}"
    yield schema["description"]
    yield _table(iter(own))
    if apart:
        yield f"## {'.'.join((*keys, _LONG))}"
        yield schema["properties"][_LONG]["description"]
        yield _table(iter(apart))


def _table(rows: Iterator[Field]) -> str:
    return "\n".join([_TABLE, *(_row(field) for field in rows if field.keys[-1] not in ("[]", "*"))])


def _row(field: Field) -> str:
    rules = [rule["message"] for rule in field.schema.get("x-kubernetes-validations", ())]
    said = [field.schema["description"], *(f"Refused with “{rule}”." for rule in rules if not _SIZE.match(rule))]
    default = "**required**" if field.is_required else _value(field.schema.get("default"))
    cells = (f"`{field.path}`", type_of(field.schema), default, " ".join(said))
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _value(value: Any) -> str:
    return "" if value is None or value == {} else f"`{value}`"


def type_of(schema: Schema) -> str:
    """Return a field's type with its bounds, in words."""
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        [rule] = schema["x-kubernetes-validations"]
        bounds = _SIZE.match(rule["message"])
        return f"size, {bounds[1]} to {bounds[2]}" if bounds else "quantity"
    kind = schema["type"]
    if kind == "integer":
        return f"integer, {schema['minimum']}" + (f" to {schema['maximum']}" if "maximum" in schema else " or more")
    if kind == "array":
        least = f"{schema['minItems']} to" if "minItems" in schema else "at most"
        return f"list, {least} {schema['maxItems']}{_of(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map, at most {schema['maxProperties']}{_of(schema['additionalProperties'])}"
    if kind == "string" and "maxLength" in schema:
        return f"string, at most {schema['maxLength']}"
    return str(schema.get("format", kind))


def _of(schema: Schema) -> str:
    return "" if "properties" in schema else f" of: {type_of(schema)}"


if __name__ == "__main__":
    FILE.write_text(render(), "utf-8")
