"""Reconciling against an API server in memory: what is written, and when nothing is."""

import copy
import json

import pytest

from pagoda_operator.kube.errors import FailedError, UnreachableError
from pagoda_operator.kube.transport import Answer, Request
from pagoda_operator.reconcile import CONFLICT_SECONDS, LEAVING_SECONDS, UNREADY_SECONDS
from pagoda_protocol.marks import nodes_mark
from tests.operator.children.pools import MANAGED
from tests.operator.reconcile.objects import Said, said, waiting
from tests.operator.reconcile.story import NAMESPACE, POOL, SPEC, Json, Refusing, Story
from tests.support.api_server import MemoryApiServer, answer_of


@pytest.fixture
def story() -> Story:
    return Story()


def written(cluster: MemoryApiServer) -> list[str]:
    return [f"{request.method} {request.path.rpartition('/namespaces/models/')[2]}" for request in cluster.writes]


async def test_a_pool_is_brought_about_and_told_of_as_soon_as_its_pods_serve(story: Story) -> None:
    assert await story.reconcile() == UNREADY_SECONDS
    assert story.cluster.condition("Ready") == ("False", "RollingOut")
    story.cluster.run_controllers()
    assert await story.reconcile() is None
    assert story.cluster.condition("Ready") == ("True", "Serving")
    assert story.cluster.condition("PoolReady") == ("True", "Proved")
    assert story.fleet.expected[-1] == 1


@pytest.mark.parametrize(
    ("cache", "cache_ready", "pool_ready"),
    [
        ({}, ("True", "NotConfigured"), ("True", "NotConfigured")),
        ({"ram": {"size": "1Gi"}}, ("Unknown", "NotProven"), ("True", "NotConfigured")),
        (SPEC["cache"], ("Unknown", "NotProven"), ("False", "NodesNotReady")),
    ],
    ids=["nothing", "RAM", "RAM and pool"],
)
async def test_of_tiers_that_are_not_asked_for_nothing_is_waited_for(
    cache: Json, cache_ready: tuple[str, str], pool_ready: tuple[str, str]
) -> None:
    story = Story({"replicas": 2, "cache": cache})
    await story.reconcile()
    assert story.cluster.condition("CacheReady") == cache_ready
    assert story.cluster.condition("PoolReady") == pool_ready


async def test_the_pool_is_proved_only_by_pods_that_follow_its_newest_nodes(story: Story) -> None:
    def following(*nodes: int) -> Said:
        tiers = dict((said(pool="ok").summary or {})["tiers"])
        mark = nodes_mark(f"chat-memcached-{ordinal}" for ordinal in nodes)
        return said(pool="ok", generation=1, summary={"tiers": tiers | {"pool": tiers["pool"] | {"list": mark}}})

    story.fleet.words = following(0, 1, 2)
    await story.settle()
    assert story.cluster.condition("PoolReady") == ("True", "Proved")
    story.edit(cache={"ram": {"size": "1Gi"}, "pool": {"managed": {**MANAGED["managed"], "replicas": 4}}})
    await story.reconcile()
    story.cluster.run_controllers()
    await story.reconcile()
    assert story.cluster.condition("PoolReady") == ("Unknown", "NotProven")
    assert story.cluster.condition("Ready") == ("True", "Serving")
    story.fleet.words = following(3, 2, 1, 0)
    await story.reconcile()
    assert story.cluster.condition("PoolReady") == ("True", "Proved")


async def test_ten_idle_minutes_make_no_write_call(story: Story) -> None:
    await story.settle()
    for _ in range(60):
        story.clock.now += 10
        assert await story.reconcile() is None
    assert written(story.cluster) == []


async def test_pods_that_crash_again_with_the_same_words_make_no_write_call(story: Story) -> None:
    def crash(number: int) -> None:
        for name, program in (("engine", "engine"), ("sidecar", "sidecar-supervisor"), ("router", "router")):
            log = f"2026-11-30T17:00:{number:02}.000Z ERROR {program}[p] cannot start: {name}\n"
            last = {"exitCode": 1, "finishedAt": f"2026-11-30T17:00:{number:02}Z", "message": log}
            state = waiting("CrashLoopBackOff", f"back-off {number}0s restarting", **last)
            crashed = {"name": name, "restartCount": number, **state}
            pod = story.cluster.named("pods", f"chat-{'router' if name == 'router' else 'engine'}-0")
            others = [one for one in pod["status"]["containerStatuses"] if one["name"] != name]
            pod["status"]["containerStatuses"] = [*others, crashed]
            story.touch(pod)

    await story.settle()
    crash(1)
    await story.reconcile()
    assert story.cluster.condition("Degraded")[0] == "True"
    for words in ("engine", "sidecar", "router"):
        assert f"which ends: cannot start: {words}" in str(story.cluster.status["conditions"])
    story.cluster.requests.clear()
    for number in range(2, 12):
        crash(number)
        story.clock.now += 5
        await story.reconcile()
    assert written(story.cluster) == []


async def test_ten_idle_minutes_of_an_operator_that_was_restarted_write_at_most_secrets_that_are_there(
    story: Story,
) -> None:
    await story.settle()
    story.restart()
    story.fleet.words = None
    for _ in range(60):
        story.clock.now += 10
        await story.reconcile()
    assert written(story.cluster) == ["POST secrets", "POST secrets"]
    assert story.cluster.condition("Ready") == ("True", "Serving"), "nobody has said anything else"


async def test_the_last_word_about_an_older_spec_is_worth_nothing_to_an_operator_that_has_just_started(
    story: Story,
) -> None:
    await story.settle()
    story.restart()
    story.fleet.words = None
    story.edit(cache={**SPEC["cache"], "idleSeconds": 5})  # type: ignore[dict-item]
    await story.reconcile()
    assert story.cluster.condition("Ready") == ("False", "NotProven")
    assert story.cluster.condition("CacheReady") == ("Unknown", "NotProven")


async def test_secrets_are_sent_again_now_and_then_and_never_read(story: Story) -> None:
    await story.settle()
    story.clock.now += 2000
    await story.reconcile()
    assert written(story.cluster) == ["POST secrets", "POST secrets"]
    assert all(request.method == "POST" for request in story.cluster.requests if "/secrets" in request.path)


async def test_a_condition_that_somebody_else_keeps_on_the_status_makes_no_write_call(story: Story) -> None:
    await story.settle()
    theirs = {"type": "example.com/Audited", "status": "True", "reason": "Seen", "message": "", "observedGeneration": 1}
    story.cluster.status["conditions"].append(theirs | {"lastTransitionTime": "2026-11-30T06:00:00Z"})
    assert await story.reconcile() is None
    assert written(story.cluster) == []


async def test_a_pod_that_merely_bears_the_labels_is_not_counted(story: Story) -> None:
    await story.settle()
    stranger = copy.deepcopy(story.cluster.named("pods", "chat-engine-0"))
    stranger["metadata"] |= {"name": "job", "ownerReferences": [{"kind": "Job", "name": "job", "controller": True}]}
    story.cluster._post("v1", "pods", NAMESPACE, stranger)
    before = copy.deepcopy(story.cluster.status)
    assert await story.reconcile() is None
    assert story.cluster.status == before
    assert written(story.cluster) == []


async def test_every_write_to_what_exists_rests_on_the_version_seen(story: Story) -> None:
    await story.settle()
    story.edit(replicas=3, cache={"ram": {"size": "1Gi"}, "idleSeconds": 5})
    await story.reconcile()
    writes = {request.path.rpartition("/")[2]: request for request in story.cluster.writes if request.method == "PATCH"}
    assert {"chat-engine", "chat-live", "status"} <= set(writes)
    assert all((request.body or {})["metadata"]["resourceVersion"] for request in writes.values())
    deletes = [request for request in story.cluster.writes if request.method == "DELETE"]
    assert len(deletes) == 5, "all of memcached"
    assert all(set((request.body or {})["preconditions"]) == {"uid", "resourceVersion"} for request in deletes)


async def test_children_and_status_are_written_by_a_manager_each(story: Story) -> None:
    await story.settle()
    story.edit(replicas=3)
    await story.reconcile()
    managers = {
        (request.path.endswith("/status"), request.query["fieldManager"])
        for request in story.cluster.writes
        if request.method == "PATCH"
    }
    assert managers == {(False, "pagoda-operator"), (True, "pagoda-operator-status")}


async def test_the_spec_of_the_pool_is_never_written(story: Story) -> None:
    await story.settle()
    story.edit(replicas=5)
    await story.reconcile()
    to_pool = [request for request in story.cluster.writes if "/inferencepools/" in request.path]
    assert [set(request.body or {}) for request in to_pool] == [{"apiVersion", "kind", "metadata", "status"}]


async def test_status_speaks_of_a_new_generation_only_after_its_children_are_written_and_says_it_is_not_ready(
    story: Story,
) -> None:
    await story.settle()
    story.edit(engine={"image": "example.com/engine:2", "resources": {"limits": {"memory": "4Gi"}}})
    await story.reconcile()
    assert [path for path in written(story.cluster) if "events" not in path] == [
        "PATCH deployments/chat-engine", "PATCH inferencepools/chat/status",
    ]  # fmt: skip
    assert story.cluster.status["observedGeneration"] == 2
    assert story.cluster.condition("Ready") == ("False", "RollingOut")
    assert story.cluster.status["updatedReplicas"] == 0


async def test_a_live_setting_keeps_the_pool_unready_until_every_engine_follows_it(story: Story) -> None:
    await story.settle()
    story.edit(cache={**SPEC["cache"], "idleSeconds": 5})  # type: ignore[dict-item]
    await story.reconcile()
    assert story.cluster.condition("Ready") == ("False", "NotProven")
    assert story.fleet.expected[-1] == 2
    story.fleet.words = said(pool="ok", generation=2)
    await story.reconcile()
    assert story.cluster.condition("Ready") == ("True", "Serving")


async def test_k14_somebody_elses_write_in_between_ends_the_turn_quietly_and_nothing_is_lost(story: Story) -> None:
    await story.settle()
    story.edit(replicas=3)

    def interfere(request: Request) -> None:
        if request.path.endswith("/status"):
            story.cluster.on_request = lambda _: None
            story.edit(replicas=4)

    story.cluster.on_request = interfere
    assert await story.reconcile() == CONFLICT_SECONDS
    await story.reconcile()
    assert story.cluster.named("deployments", "chat-engine")["spec"]["replicas"] == 4
    assert (story.cluster.status["observedGeneration"], story.cluster.status["desiredReplicas"]) == (3, 4)


async def test_a_child_of_another_is_left_alone_and_the_rest_is_brought_about(story: Story) -> None:
    metadata = {"name": "chat-router", "namespace": NAMESPACE, "labels": {"a": "b"}}
    foreign = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 1}]}}
    story.cluster._post("v1", "services", NAMESPACE, foreign)
    await story.reconcile()
    assert story.cluster.named("services", "chat-router")["spec"] == {"ports": [{"port": 1}]}
    assert story.cluster.condition("Degraded") == ("True", "NameClash")
    assert story.cluster.condition("Ready") == ("False", "NameClash")


async def test_what_somebody_makes_between_the_look_and_the_write_is_not_taken_over(story: Story) -> None:
    send, metadata = story.cluster.send, {"name": "chat-live", "namespace": NAMESPACE}
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"mine": "yes"}}

    async def interrupted(request: Request) -> Answer:
        if request.method == "PATCH" and request.path.endswith("/configmaps/chat-live"):
            story.cluster.send = send  # type: ignore[method-assign]
            story.cluster._post("v1", "configmaps", NAMESPACE, theirs)
        return await send(request)

    story.cluster.send = interrupted  # type: ignore[method-assign]
    assert await story.reconcile() == CONFLICT_SECONDS
    await story.reconcile()
    found = story.cluster.named("configmaps", "chat-live")
    assert found["data"] == {"mine": "yes"}
    assert "ownerReferences" not in found["metadata"]
    assert story.cluster.condition("Degraded") == ("True", "NameClash")
    assert story.cluster.named("deployments", "chat-engine")["spec"]["replicas"] == 2


async def test_a_refused_spec_leaves_the_children_as_they_are_and_says_what_is_wrong(story: Story) -> None:
    await story.settle()
    children = {key: found for key, found in story.cluster.objects.items() if key[1] != "inferencepools"}
    story.edit(replicas="many")
    await story.reconcile()
    assert {key: found for key, found in story.cluster.objects.items() if key in children} == children
    assert story.cluster.condition("Degraded") == ("True", "InvalidSpec")
    assert story.cluster.condition("Ready") == ("False", "InvalidSpec")
    assert story.cluster.condition("RoutingReady") == ("True", "Routing")
    entry = next(entry for entry in story.cluster.status["conditions"] if entry["type"] == "Degraded")
    assert "spec.replicas" in entry["message"]
    numbers = [story.cluster.status[key] for key in ("desiredReplicas", "readyReplicas", "observedGeneration")]
    assert numbers == [2, 2, 2]


@pytest.mark.parametrize("refused", ["poddisruptionbudgets", "secrets"])
async def test_a_child_that_is_refused_keeps_no_other_from_its_place_and_is_quoted(story: Story, refused: str) -> None:
    story.cluster = cluster = Refusing()
    cluster.refused = refused
    story.cluster.pool(SPEC)
    story.restart()
    assert await story.reconcile() == UNREADY_SECONDS
    assert story.cluster.named("deployments", "chat-engine")
    assert story.cluster.condition("Degraded") == ("True", "ChildForbidden")
    assert "may not patch" in json.dumps(story.cluster.status)


@pytest.mark.parametrize("refused", ["poddisruptionbudgets", "secrets", "serviceaccounts"])
@pytest.mark.parametrize("status", [500, 504])
async def test_a_child_whose_admission_fails_keeps_no_other_from_its_place_and_is_tried_again_by_the_queue(
    story: Story, refused: str, status: int
) -> None:
    story.cluster = cluster = Refusing()
    cluster.refused, cluster.status_code = refused, status
    story.cluster.pool(SPEC)
    story.restart()
    with pytest.raises(FailedError, match="may not patch"):
        await story.reconcile()
    assert story.cluster.named("deployments", "chat-engine")
    assert story.cluster.condition("Degraded") == ("True", "ChildFailed")
    assert story.cluster.condition("Ready") == ("False", "ChildFailed")
    assert "may not patch" in json.dumps(story.cluster.status)

    cluster.refused = "nothing"
    assert await story.reconcile() == UNREADY_SECONDS
    story.cluster.run_controllers()
    assert await story.reconcile() is None
    assert story.cluster.condition("Degraded") == ("False", "NoProblem")


async def test_what_the_api_server_fails_to_read_is_told_to_the_queue_and_leaves_the_status_alone(story: Story) -> None:
    await story.settle()
    before, send = copy.deepcopy(story.cluster.status), story.cluster.send

    async def fail(request: Request) -> Answer:
        return answer_of(500, {}) if request.path.endswith("/pods") else await send(request)

    story.cluster.send = fail  # type: ignore[method-assign]
    with pytest.raises(FailedError):
        await story.reconcile()
    assert story.cluster.status == before


async def test_an_object_that_has_to_be_made_anew_is_deleted_and_then_made(story: Story) -> None:
    await story.settle()
    service = story.cluster.named("services", "chat-engine")
    service["spec"]["clusterIP"] = "10.0.0.1"
    uid = service["metadata"]["uid"]
    assert await story.reconcile() == LEAVING_SECONDS
    assert story.cluster.condition("Progressing") == ("True", "Creating")
    assert await story.reconcile() is None
    assert story.cluster.named("services", "chat-engine")["metadata"]["uid"] != uid
    assert story.cluster.condition("Ready") == ("True", "Serving")


async def test_the_pods_of_a_deployment_that_is_made_anew_stay_and_those_of_memcached_go(story: Story) -> None:
    await story.settle()
    engine = story.cluster.named("deployments", "chat-engine")["spec"]
    for labels in (engine["selector"]["matchLabels"], engine["template"]["metadata"]["labels"]):
        labels["more"] = "x"
    story.cluster.named("statefulsets", "chat-memcached")["spec"]["podManagementPolicy"] = "OrderedReady"
    await story.reconcile()
    deletes = [request for request in story.cluster.writes if request.method == "DELETE"]
    left = {request.path.rpartition("/")[2]: (request.body or {})["propagationPolicy"] for request in deletes}
    assert left == {"chat-engine": "Orphan", "chat-memcached": "Background"}


async def test_a_pool_that_is_gone_or_goes_is_left_to_the_cluster(story: Story) -> None:
    await story.settle()
    story.cluster.named("inferencepools", POOL)["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert await story.reconcile() is None
    del story.cluster.objects["pagoda-kv.io/v1alpha1", "inferencepools", NAMESPACE, POOL]
    assert await story.reconcile() is None
    assert written(story.cluster) == []


async def test_a_refused_event_costs_nothing(story: Story) -> None:
    story.cluster = Refusing()
    story.cluster.refused = "nothing"
    story.cluster.pool(SPEC)
    story.restart()
    await story.reconcile()
    story.cluster.run_controllers()
    send = story.cluster.send

    async def refuse_events(request: Request) -> Answer:
        return answer_of(403, {"message": "no"}) if "events" in request.path else await send(request)

    story.cluster.send = refuse_events  # type: ignore[method-assign]
    assert await story.reconcile() is None
    assert story.cluster.condition("Ready") == ("True", "Serving")


async def test_no_answer_of_the_api_server_is_told_to_the_queue(story: Story) -> None:
    await story.settle()

    async def silence(_: Request) -> Answer:
        raise UnreachableError("no answer")

    story.cluster.send = silence  # type: ignore[method-assign]
    with pytest.raises(UnreachableError):
        await story.reconcile()


async def test_conditions_are_shown_as_metrics_until_the_pool_is_gone(story: Story) -> None:
    await story.settle()
    shown = 'pagoda_pool_condition{namespace="models",pool="chat",type="Ready"} 1.0'
    assert shown in story.metrics.exposition().decode()
    del story.cluster.objects["pagoda-kv.io/v1alpha1", "inferencepools", NAMESPACE, POOL]
    await story.reconcile()
    assert "pagoda_pool_condition{" not in story.metrics.exposition().decode()
