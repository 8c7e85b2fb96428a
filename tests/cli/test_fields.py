"""Each field of a pool does something here or is named as without effect; a field added later fails until it does."""

import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagoda_cli.keys import secret_problems
from pagoda_cli.manifest import fields_without_effect
from pagoda_cli.memory import memory_needs
from pagoda_cli.plan import make_plan
from pagoda_cli.state import StateFolder
from pagoda_protocol.pool.spec import InferencePool
from tests.cli.manifests import pool
from tests.cli.test_plan import PLACE

PACKAGE_AND_MANAGED = pool(spec__cache__disk={"size": "1Gi"})
PATH_AND_EXTERNAL = pool(
    spec__model__source={"local": {"path": "/models/x"}},
    spec__cache__disk={"size": "1Gi"},
    spec__cache__pool={
        "external": {
            "addresses": ["mc-0:11211"],
            "tlsSecretRef": {"name": "memcached-tls"},
            "authSecretRef": {"name": "memcached-auth"},
        }
    },
    spec__cache__secretRef={"name": "shared"},
)


def changed(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield `value` once for each field in it, with that field changed, and the field's path."""
    for field in dataclasses.fields(value):
        member = getattr(value, field.name)
        if dataclasses.is_dataclass(member):
            others = [(f"{field.name}.{path}", other) for path, other in changed(member)]
        elif isinstance(member, int) or "int" in str(field.type):
            others = [(field.name, (member or 0) + 1)]
        else:
            others = [(field.name, (*member, "other") if isinstance(member, tuple) else f"{member}-other")]
        for path, other in others:
            yield path, replace(value, **{field.name: other})


def effect(of: InferencePool) -> tuple[object, ...]:
    """Return all that a pool decides on one machine: programs and settings, memory, secrets that must be there."""
    place = replace(PLACE, node_ports=[]) if hasattr(of.cache.pool, "addresses") else PLACE
    secrets = secret_problems(of, StateFolder(Path("/nowhere")))
    return make_plan(of, place), memory_needs(of, has_memcached=True), secrets


@pytest.mark.parametrize("base", [PACKAGE_AND_MANAGED, PATH_AND_EXTERNAL], ids=["package, managed", "path, external"])
def test_every_field_of_a_pool_has_an_effect_or_is_named(base: InferencePool) -> None:
    assert fields_without_effect(base) == []
    paths = []
    for path, other in changed(base):
        paths.append(path)
        assert effect(other) != effect(base) or fields_without_effect(other), path
    assert {"replicas", "engine.startup_seconds", "tenancy.api_keys_secret_name"} <= set(paths)
