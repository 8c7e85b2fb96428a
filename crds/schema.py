"""Walks the schema of the CRD, for what is made from it and what is held to it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).resolve().parent / "pagoda-kv.io_inferencepools.yaml"
Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Field:
    """One field of the object."""

    keys: tuple[str, ...]
    """The way to it; "[]" stands for each item of a list, "*" for each key of a map."""
    schema: Schema
    is_required: bool
    """Whether the object that holds it needs it."""

    @property
    def path(self) -> str:
        """The way to it as people write it."""
        written = [f'"{key}"' if "/" in key or "." in key else key for key in self.keys]
        return ".".join(written).replace(".[]", "[]")


def load() -> dict[str, Any]:
    """Return the CRD."""
    return dict(yaml.safe_load(FILE.read_text("utf-8")))


def version(crd: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return its one version."""
    [only] = crd["spec"]["versions"]
    return dict(only)


def fields(schema: Schema, keys: tuple[str, ...] = ()) -> Iterator[Field]:
    """Yield each field below `schema`, a mapping or a list before what it holds."""
    for key, child in schema.get("properties", {}).items():
        yield from _with_children(Field((*keys, key), child, key in schema.get("required", ())))
    if "items" in schema:
        yield from _with_children(Field((*keys, "[]"), schema["items"], True))
    if "additionalProperties" in schema:
        yield from _with_children(Field((*keys, "*"), schema["additionalProperties"], False))


def spec_fields() -> list[Field]:
    """Return each field of `spec`."""
    root = version(load())["schema"]["openAPIV3Schema"]
    return list(fields(root["properties"]["spec"], ("spec",)))


def _with_children(field: Field) -> Iterator[Field]:
    yield field
    yield from fields(field.schema, field.keys)
