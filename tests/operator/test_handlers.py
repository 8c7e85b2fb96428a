"""What an event triggers: kopf's own dispatch with our registry, no cluster."""

import asyncio
import itertools
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import kopf
import pytest
from kopf._cogs.structs import references
from kopf._core.engines import indexing
from kopf._core.intents.registries import OperatorRegistry
from kopf._core.reactor import inventory, processing

from pagoda_operator.handlers import make_registry, make_settings
from pagoda_operator.kube.kinds import CHILDREN, DEPLOYMENT, POD, POOL, Kind
from pagoda_operator.names import labels


class Told:
    """kopf with our handlers; `.triggers` is what they did."""

    def __init__(self) -> None:
        self.triggers: list[tuple[str, str]] = []
        self._registry: OperatorRegistry = make_registry(lambda *key: self.triggers.append(key))
        self._memories = inventory.ResourceMemories()
        self.patches: list[object] = []

    async def event(self, kind: Kind, body: Mapping[str, Any], type_: str | None = "MODIFIED") -> None:
        group, _, version = kind.api_version.rpartition("/")
        resource = references.Resource(
            group, version, kind.plural, kind=kind.kind, verbs=frozenset({"list", "watch", "patch"}), namespaced=True
        )
        await processing.process_resource_event(
            lifecycle=kopf.lifecycles.all_at_once,
            indexers=indexing.OperatorIndexers(),
            registry=self._registry,
            settings=make_settings(),
            memories=self._memories,
            memobase=kopf.Memo(),
            resource=resource,
            raw_event={"type": type_, "object": {"apiVersion": kind.api_version, "kind": kind.kind, **body}},  # type: ignore[typeddict-item]
            event_queue=asyncio.Queue(),
        )


def child(name: str, part: str = "engine", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "default", "name": name, "uid": name, "labels": labels("chat", part), **metadata}}


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    caplog.set_level(logging.WARNING)
    return Told()


async def test_any_event_of_a_pool_is_a_trigger(told: Told) -> None:
    pool = {"metadata": {"namespace": "default", "name": "chat", "uid": "1"}, "spec": {}}
    for type_ in (None, "ADDED", "MODIFIED", "DELETED"):
        await told.event(POOL, pool, type_)
    assert told.triggers == [("default", "chat")] * 4


@pytest.mark.parametrize("kind", CHILDREN, ids=lambda kind: kind.kind)
async def test_an_event_of_a_child_triggers_its_pool(told: Told, kind: Kind) -> None:
    await told.event(kind, child("chat-engine"))
    assert told.triggers == [("default", "chat")]


async def test_an_object_without_the_pools_label_triggers_nothing(told: Told) -> None:
    await told.event(DEPLOYMENT, {"metadata": {"namespace": "default", "name": "other", "uid": "2"}})
    assert told.triggers == []


async def test_of_a_pod_only_what_is_more_than_annotations_is_a_trigger(told: Told) -> None:
    await told.event(POD, child("chat-router-1", "router", resourceVersion="1"))
    await told.event(
        POD, child("chat-router-1", "router", resourceVersion="2", annotations={"a": "b"}, managedFields=[1])
    )
    assert len(told.triggers) == 1
    await told.event(POD, child("chat-router-1", "router", resourceVersion="3") | {"status": {"phase": "Running"}})
    assert len(told.triggers) == 2
    await told.event(POD, child("chat-router-1", "router", resourceVersion="4", deletionTimestamp="now"))
    assert len(told.triggers) == 3
    await told.event(POD, child("chat-router-1", "router", resourceVersion="5"), "DELETED")
    assert len(told.triggers) == 4


async def test_kopf_is_told_to_write_nothing_and_to_look_only_for_what_is_ours() -> None:
    settings = make_settings()
    assert not settings.posting.enabled
    assert settings.peering.standalone
    assert settings.scanning.disabled
    assert settings.persistence.finalizer != kopf.OperatorSettings().persistence.finalizer
    ours = "app.kubernetes.io/managed-by=pagoda-operator"
    for kind, selector in (*((kind, ours) for kind in CHILDREN), (POD, f"{ours},pagoda-kv.io/part!=engine")):
        group, _, version = kind.api_version.rpartition("/")
        resource = references.Resource(group, version, kind.plural)
        assert settings.watching.label_selectors.collect(resource) == [selector]


def test_what_may_not_be_read_for_a_while_is_tried_for_ever_and_ends_nobody() -> None:
    waits = make_settings().networking.error_backoffs
    assert isinstance(waits, Iterable)
    for _ in ("for one request", "for the next one"):
        first, *others = itertools.islice(waits, 1000)
        assert first <= 0.5
        assert len(others) == 999
        assert all(15 <= wait <= 30 for wait in others[10:])
