"""Reconciling on a real control plane: drift, strangers, what cannot be changed, scaling, edits, deletion."""

import asyncio
import contextlib
import copy
import json
import time
from typing import Any

import pytest

from e2e.cluster.handle import Cluster
from e2e.operator.played import PATIENCE_SECONDS, Scene, eventually, playing
from pagoda_operator import names
from pagoda_operator.changes import NEVER
from pagoda_operator.compare import difference
from pagoda_operator.kube.errors import ConflictError
from pagoda_operator.kube.kinds import CHILDREN, CONFIG_MAP, DEPLOYMENT, POD, POOL, SERVICE, Kind
from tests.operator.children.pools import MANAGED
from tests.operator.reconcile.objects import said

Json = dict[str, Any]
Children = dict[tuple[str, str], Json]
SPEC: Json = {"replicas": 2, "cache": {"ram": {"size": "64Mi"}, "pool": MANAGED}}
NUM_CHILDREN = 18
GONE_SECONDS = 20.0


async def children(scene: Scene, pool: str = "chat") -> Children:
    """Return a pool's children as they are."""
    selector = f"{names.POOL_LABEL}={pool}"
    lists = await asyncio.gather(*(scene.api.list(kind, scene.namespace, selector) for kind in CHILDREN))
    return {(each["kind"], each["metadata"]["name"]): each for found, _ in lists for each in found}


async def settled(scene: Scene) -> Children:
    """Have a pool served, and return its children."""
    scene.start()
    await scene.apply("chat", SPEC)
    await scene.until("chat", "Ready", "True")
    await scene.until("chat", "PoolReady", "True")
    return await children(scene)


async def meddle(scene: Scene, kind: Kind, name: str, **changed: Any) -> None:
    """Change fields of an object as somebody with kubectl would."""
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name, "namespace": scene.namespace}}
    labels = {"metadata": {**body["metadata"], **changed.pop("metadata", {})}}
    await scene.api.apply(kind, {**body, **changed, **labels}, manager="meddler")


def kind_named(name: str) -> Kind:
    return next(kind for kind in CHILDREN if kind.kind == name)


DRIFT: dict[str, Json] = {
    "Deployment": {"spec": {"replicas": 7}},
    "StatefulSet": {"spec": {"replicas": 1}},
    "Service": {"spec": {"selector": {"somebody": "else"}}},
    "ConfigMap": {"data": {"live.json": "{}"}},
    "PodDisruptionBudget": {"spec": {"maxUnavailable": 3}},
    "NetworkPolicy": {"spec": {"ingress": [{}]}},
    "Role": {"rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]},
    "RoleBinding": {"subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}]},
    "ServiceAccount": {"automountServiceAccountToken": True},
}


async def test_every_child_that_somebody_changes_or_deletes_is_put_right(knowing: Cluster) -> None:
    async with playing(knowing, "drift") as scene:
        before = await settled(scene)
        assert len(before) == NUM_CHILDREN
        assert {kind for kind, _ in before} == set(DRIFT)

        async def is_right() -> bool:
            now = await children(scene)
            wrong = [key for key, found in before.items() if key not in now or _drifts(found, now[key])]
            return not wrong and len(now) == NUM_CHILDREN

        for kind, name in before:
            await meddle(scene, kind_named(kind), name, **DRIFT[kind], metadata={"labels": {names.POOL_LABEL: "other"}})
        await eventually(is_right)

        for kind, name in before:
            await _delete(scene, kind_named(kind), name)
        await eventually(is_right)
        await scene.until("chat", "Ready", "True")


def _drifts(before: Json, now: Json) -> bool:
    """Whether a child lacks something that it had; the cluster gives a Service that is made anew another address."""
    had = {key: before[key] for key in ("spec", "data", "rules", "subjects", "roleRef") if key in before}
    if before["kind"] == "Service" and before["spec"]["clusterIP"] != "None":
        had["spec"] = {key: value for key, value in before["spec"].items() if key not in ("clusterIP", "clusterIPs")}
    return difference({**had, "metadata": {"labels": before["metadata"]["labels"]}}, now) is not None


async def _delete(scene: Scene, kind: Kind, name: str) -> None:
    """Delete an object as somebody with kubectl would."""
    while (found := await scene.api.get(kind, scene.namespace, name)) is not None:
        metadata = found["metadata"]
        with contextlib.suppress(ConflictError):  # the controllers write too
            version = metadata["resourceVersion"]
            return await scene.api.delete(kind, scene.namespace, name, uid=metadata["uid"], resource_version=version)
    return None


async def test_what_has_the_name_of_a_child_and_is_not_ours_is_never_touched(knowing: Cluster) -> None:
    async with playing(knowing, "clash") as scene:
        strangers = [
            (SERVICE, {"spec": {"ports": [{"port": 1}]}}),
            (CONFIG_MAP, {"data": {"mine": "yes"}}),
        ]
        for kind, body in strangers:
            name = "chat-router" if kind is SERVICE else "chat-live"
            await meddle(scene, kind, name, **body, metadata={"labels": {names.POOL_LABEL: "chat"}})
        before = [await scene.api.get(SERVICE, scene.namespace, "chat-router")]
        before += [await scene.api.get(CONFIG_MAP, scene.namespace, "chat-live")]
        scene.start()
        await scene.apply("chat", SPEC)
        message = await scene.until("chat", "Degraded", "True", "NameClash")
        assert "Service chat-router" in message
        assert "ConfigMap chat-live" in message
        await asyncio.sleep(0.5)
        now = [await scene.api.get(SERVICE, scene.namespace, "chat-router")]
        now += [await scene.api.get(CONFIG_MAP, scene.namespace, "chat-live")]
        assert now == before
        assert len(await children(scene)) == NUM_CHILDREN, "the others are there"

        await _delete(scene, SERVICE, "chat-router")
        await _delete(scene, CONFIG_MAP, "chat-live")
        await scene.until("chat", "Ready", "True")


async def test_an_apply_of_what_was_missed_makes_it_and_takes_nothing_over(knowing: Cluster) -> None:
    async with playing(knowing, "missed") as scene:
        metadata = {"name": "chat-live", "namespace": scene.namespace, "resourceVersion": NEVER}
        missed = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"mine": "yes"}}
        await scene.api.apply(CONFIG_MAP, missed, manager="somebody")
        with pytest.raises(ConflictError):
            await scene.api.apply(CONFIG_MAP, {**missed, "data": {"mine": "no"}}, manager="operator")
        found = await scene.api.get(CONFIG_MAP, scene.namespace, "chat-live")
        assert found is not None
        assert found["data"] == {"mine": "yes"}


async def test_what_a_pool_no_longer_wants_goes_and_what_only_looks_like_it_stays(knowing: Cluster) -> None:
    async with playing(knowing, "orphans") as scene:
        before = await settled(scene)
        await scene.stop()
        scene.start().words = lambda _, words: said(pool="none", generation=words.generation)
        lookalike = {"metadata": {"labels": {names.POOL_LABEL: "chat", names.PART_LABEL: names.MEMCACHED}}}
        await meddle(scene, CONFIG_MAP, "chat-notes", **lookalike)
        await scene.apply("chat", {**SPEC, "cache": {"ram": {"size": "64Mi"}}})
        memcached = {key for key in before if key[1] == "chat-memcached"}

        async def has_gone() -> bool:
            return set(await children(scene)) == set(before) - memcached | {("ConfigMap", "chat-notes")}

        assert len(memcached) == 5
        await eventually(has_gone)
        await scene.until("chat", "PoolReady", "True", "NotConfigured")


async def test_a_service_whose_kind_of_address_must_change_is_made_anew(knowing: Cluster) -> None:
    async with playing(knowing, "fixed-service") as scene:
        before = await settled(scene)
        await scene.stop()
        owners = before["Service", "chat-engine"]["metadata"]["ownerReferences"]
        await _delete(scene, SERVICE, "chat-engine")
        await meddle(scene, SERVICE, "chat-engine", spec={"ports": [{"port": 1}]}, metadata={"ownerReferences": owners})
        scene.start()

        async def is_headless() -> bool:
            found = await scene.api.get(SERVICE, scene.namespace, "chat-engine")
            return found is not None and found["spec"]["clusterIP"] == "None"

        await eventually(is_headless)
        await scene.until("chat", "Ready", "True")


async def test_a_deployment_with_a_foreign_selector_is_made_anew_while_its_pods_serve(knowing: Cluster) -> None:
    async with playing(knowing, "fixed-deployment") as scene:
        before = (await settled(scene))["Deployment", "chat-engine"]
        await scene.stop()
        await _delete(scene, DEPLOYMENT, "chat-engine")

        async def has_no_pods() -> bool:
            return not [name for name in scene.kubelet.ready if name.startswith("chat-engine")]

        await eventually(has_no_pods)
        other = copy.deepcopy({key: before[key] for key in ("apiVersion", "kind", "spec")})
        labels = other["spec"]["template"]["metadata"]["labels"]
        labels["more"] = other["spec"]["selector"]["matchLabels"]["more"] = "of-it"
        metadata = {key: before["metadata"][key] for key in ("name", "namespace", "labels", "ownerReferences")}
        await scene.api.apply(DEPLOYMENT, {**other, "metadata": metadata}, manager="restore")

        async def serves() -> bool:
            return len([name for name in scene.kubelet.ready if name.startswith("chat-engine")]) == SPEC["replicas"]

        await eventually(serves)
        scene.start()
        least = SPEC["replicas"]
        end = time.monotonic() + PATIENCE_SECONDS
        while (await scene.condition("chat", "Ready"))[0] != "True" or not await _selects_as_before(scene, before):
            least = min(least, len([name for name in scene.kubelet.ready if name.startswith("chat-engine")]))
            assert time.monotonic() < end
            await asyncio.sleep(0.02)
        assert least == SPEC["replicas"], "its pods served until their successors did"


async def _selects_as_before(scene: Scene, before: Json) -> bool:
    found = await scene.api.get(DEPLOYMENT, scene.namespace, "chat-engine")
    return found is not None and found["spec"]["selector"] == before["spec"]["selector"]


async def test_k10_scale_autoscaler_and_operator_do_not_fight(knowing: Cluster) -> None:
    """As far as it is about who owns a field: each number is written once, by the pool's scale, and stays."""
    async with playing(knowing, "scale") as scene:
        await settled(scene)
        autoscaler = {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "chat", "namespace": scene.namespace},
            "spec": {
                "scaleTargetRef": {"apiVersion": POOL.api_version, "kind": POOL.kind, "name": "chat"},
                "minReplicas": 3,
                "maxReplicas": 9,
                "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {
                    "type": "Utilization", "averageUtilization": 50}}}],
            },
        }  # fmt: skip
        numbers: list[int] = []
        watching = asyncio.create_task(_watch_replicas(scene, numbers))
        try:
            await _kubectl(scene, "apply", "-f", "-", input=json.dumps(autoscaler))
            await eventually(lambda: _has_pods(scene, 3))  # the autoscaler raises to its minimum by itself
            await _kubectl(scene, "scale", f"{POOL.plural}.pagoda-kv.io/chat", "--replicas=5")
            await eventually(lambda: _has_pods(scene, 5))
            await scene.until("chat", "Ready", "True")
            await asyncio.sleep(2)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        assert [number for index, number in enumerate(numbers) if numbers[index - 1 : index] != [number]] == [2, 3, 5]
        pool = await scene.pool("chat")
        managers = {entry["manager"] for entry in pool["metadata"]["managedFields"] if "subresource" not in entry}
        assert managers == {"user"}, "the operator writes nothing but the status"
        scaled = {
            entry["manager"] for entry in pool["metadata"]["managedFields"] if entry.get("subresource") == "scale"
        }
        assert names.MANAGER not in scaled
        scale = json.loads(await _kubectl(scene, "get", "--raw", _path(scene, "chat", "scale")))
        assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (5, 5)
        assert scale["status"]["selector"] == "pagoda-kv.io/pool=chat,pagoda-kv.io/part=engine"


async def _watch_replicas(scene: Scene, numbers: list[int]) -> None:
    while True:
        found = await scene.api.get(DEPLOYMENT, scene.namespace, "chat-engine")
        assert found is not None
        numbers.append(found["spec"]["replicas"])
        await asyncio.sleep(0.03)


async def _has_pods(scene: Scene, number: int) -> bool:
    return int((await scene.pool("chat"))["status"]["readyReplicas"]) == number


async def _kubectl(scene: Scene, *arguments: str, input: str | None = None) -> str:
    return await asyncio.to_thread(scene.cluster.kubectl, "-n", scene.namespace, *arguments, input=input)


def _path(scene: Scene, pool: str, subresource: str) -> str:
    return f"/apis/{POOL.api_version}/namespaces/{scene.namespace}/{POOL.plural}/{pool}/{subresource}"


async def test_k14_edits_at_one_time_lose_no_status_and_make_no_storm(knowing: Cluster) -> None:
    """People, autoscalers and labellers write to the pool and its children as fast as they can."""
    async with playing(knowing, "edits") as scene:
        await settled(scene)
        scene.calls.clear()
        num_edits = 40
        for number in range(num_edits):
            await asyncio.gather(
                meddle(scene, POOL, "chat", metadata={"annotations": {"note": str(number)}}),
                meddle(scene, DEPLOYMENT, "chat-engine", metadata={"annotations": {"note": str(number)}}),
                scene.apply("chat", {**SPEC, "replicas": 1 + number % 2}),
            )
        await scene.until("chat", "Ready", "True")
        pool = await scene.pool("chat")
        assert pool["status"]["observedGeneration"] == pool["metadata"]["generation"]
        assert pool["status"]["desiredReplicas"] == pool["spec"]["replicas"] == 2
        assert pool["metadata"]["annotations"]["note"] == str(num_edits - 1)
        refused = [call for call in scene.calls if not call[2].startswith("2")]
        assert {call[2] for call in refused} <= {"409", "404"}, "the operator was never wrong, at most late"
        assert len(refused) <= 2 * num_edits, "each edit costs it a try or two"


async def test_k12_a_pool_is_gone_in_seconds_with_the_operator_down_and_everything_broken(collecting: Cluster) -> None:
    """Deletion is the cluster's own matter; nothing of ours has a say in it."""
    async with playing(collecting, "deletion") as scene:
        broken = {**SPEC, "engine": {"image": "example.com/none:1", "resources": {"limits": {"memory": "2Gi"}}}}
        scene.kubelet.pending = True
        scene.start()
        await scene.apply("chat", broken)
        await scene.until("chat", "Degraded", "True", "Unschedulable")
        await scene.stop()
        pool = await scene.pool("chat")
        assert "finalizers" not in pool["metadata"]
        assert "annotations" not in pool["metadata"], "nobody keeps notes on the user's object"
        begin = time.monotonic()
        await _kubectl(scene, "delete", f"{POOL.plural}.pagoda-kv.io", "chat", "--timeout=10s")
        assert time.monotonic() - begin < 10

        async def is_gone() -> bool:
            pods, _ = await scene.api.list(POD, scene.namespace)
            secrets = await _kubectl(scene, "get", "secrets", "-o", "name")
            return not pods and not secrets.strip() and not await children(scene)

        await eventually(is_gone, GONE_SECONDS)


async def test_a_pool_of_the_same_name_follows_at_once(knowing: Cluster) -> None:
    async with playing(knowing, "again") as scene:
        await settled(scene)
        former = (await scene.pool("chat"))["metadata"]["uid"]
        await _kubectl(scene, "delete", f"{POOL.plural}.pagoda-kv.io", "chat")
        await scene.apply("chat", SPEC)
        await scene.until("chat", "Ready", "True")
        owners = {each["metadata"]["ownerReferences"][0]["uid"] for each in (await children(scene)).values()}
        assert former not in owners
        events = json.loads(await _kubectl(scene, "get", "events", "-o", "json"))["items"]
        assert not [event for event in events if event.get("reason") == "NameClash"], "a predecessor is no stranger"
