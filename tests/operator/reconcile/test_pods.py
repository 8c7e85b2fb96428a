"""What pods' own statuses are taken to say."""

from typing import Any

import pytest

from pagoda_operator.pods import Problem, read_pod, tell
from tests.operator.reconcile.objects import pod, waiting

Json = dict[str, Any]


def problem(part: str, manifest: Json) -> Problem:
    read = read_pod(part, manifest)
    assert read is not None
    (found,) = read.problems
    return found


@pytest.mark.parametrize(
    ("part", "message", "field"),
    [
        ("engine", "1 Insufficient nvidia.com/gpu.", 'spec.engine.resources.limits."nvidia.com/gpu"'),
        ("engine", "1 Insufficient memory.", "spec.engine.resources.limits.memory or spec.cache.ram.size"),
        ("engine", "1 Insufficient cpu.", "spec.engine.resources.limits.cpu"),
        ("engine", "1 Insufficient ephemeral-storage.", "spec.cache.disk.size"),
        ("engine", "1 node(s) had untolerated taint(s).", "spec.engine.podTemplate.tolerations"),
        ("engine", "1 node(s) didn't match Pod's node affinity/selector.", "spec.engine.podTemplate.nodeSelector"),
        ("engine", "1 node(s) didn't match pod anti-affinity rules.", "spec.engine.podTemplate.affinity"),
        ("engine", "1 node(s) didn't match pod topology spread constraints.", "topologySpreadConstraints"),
        ("engine", "pod has unbound immediate PersistentVolumeClaims.", "spec.cache.disk.storageClassName"),
        ("memcached", "1 Insufficient memory.", "spec.cache.pool.managed.memoryPerReplica"),
        ("router", "1 Insufficient cpu.", "spec.routing.replicas"),
        ("router", "no nodes available to schedule pods", "add nodes"),
    ],
)
def test_a_pending_pod_quotes_the_scheduler_and_names_the_field_to_change(part: str, message: str, field: str) -> None:
    found = problem(part, pod("p", part, scheduling=f"0/1 nodes are available: {message}"))
    assert (found.area, found.reason) == (part, "Unschedulable")
    assert found.text.startswith(f"0/1 nodes are available: {message.rstrip('.')}; ")
    assert field in found.text


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        (
            waiting("ImagePullBackOff", 'Back-off pulling image "a:1": ErrImagePull: not found'),
            "ImagePullBackOff",
            "not found",
        ),
        (waiting("ErrImagePull", "not found"), "ImagePullBackOff", "not found"),
        (waiting("InvalidImageName", "bad"), "InvalidImageName", "bad"),
        (
            waiting("CreateContainerConfigError", 'secret "x" not found'),
            "CreateContainerConfigError",
            'secret "x" not found',
        ),
        (
            waiting("CrashLoopBackOff", "back-off 10s", exitCode=1, message="no weights"),
            "CrashLoopBackOff",
            "no weights",
        ),
        (waiting("CrashLoopBackOff", "back-off 20s", exitCode=137, reason="OOMKilled"), "OOMKilled", "memory"),
        (
            {"ready": False, "state": {"running": {}}, "lastState": {"terminated": {"exitCode": 2}}},
            "CrashLoopBackOff",
            "code 2",
        ),
        ({"ready": False, "state": {"terminated": {"exitCode": 3}}}, "CrashLoopBackOff", "code 3"),
    ],
)
@pytest.mark.parametrize("name", ["engine", "sidecar"])
def test_a_container_that_does_not_run_says_why_and_whose_it_is(
    name: str, state: Json, reason: str, words: str
) -> None:
    found = problem("engine", pod("p", ready=False, containers={name: state}))
    assert (found.area, found.reason, found.pod) == (name, reason, "p")
    assert words in found.text


def test_a_crash_is_told_in_the_same_words_while_the_kubelet_waits_tries_and_fails() -> None:
    last = {"exitCode": 1, "reason": "Error"}
    states = [
        waiting("CrashLoopBackOff", "back-off 10s restarting", **last),
        waiting("CrashLoopBackOff", "back-off 5m0s restarting", **last),
        {"ready": False, "restartCount": 7, "state": {"running": {}}, "lastState": {"terminated": last}},
        {"ready": False, "state": {"terminated": last}},
    ]
    assert len({problem("engine", pod("p", ready=False, containers={"engine": state})) for state in states}) == 1


def test_a_crash_is_told_with_the_last_words_of_its_log_which_are_the_same_at_each_try() -> None:
    logs = [
        f"2026-11-30T17:0{minute}:00.000Z INFO engine[p] listening\n"
        f"2026-11-30T17:0{minute}:01.000Z ERROR engine[p] cannot start: --model-path /m: no such file\n"
        for minute in range(2)
    ]
    states = [waiting("CrashLoopBackOff", exitCode=1, message=log) for log in logs]
    [text] = {problem("engine", pod("p", ready=False, containers={"engine": state})).text for state in states}
    assert "exit code 1: cannot start: --model-path /m: no such file; see its log" in text


def test_a_crash_that_its_log_does_not_explain_is_told_without_it() -> None:
    killed = waiting("CrashLoopBackOff", exitCode=137, message="2026-11-30T17:00:00.000Z INFO engine[p] progress 31%")
    assert "exit code 137; see its log" in problem("engine", pod("p", ready=False, containers={"engine": killed})).text


@pytest.mark.parametrize(
    "state",
    [
        {"ready": True, "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}},
        {"ready": False, "state": {"running": {}}},
        {"ready": False, "state": {"waiting": {"reason": "PodInitializing"}}},
        {"ready": False, "state": {"terminated": {"exitCode": 0}}},
    ],
    ids=["crashed long ago", "starting", "initializing", "ended well"],
)
def test_what_is_over_or_only_takes_time_is_no_problem(state: Json) -> None:
    read = read_pod("engine", pod("p", ready=False, containers={"engine": state}))
    assert read is not None
    assert read.problems == ()


def test_a_sidecar_that_is_not_ready_beside_a_serving_engine_is_told() -> None:
    found = problem("engine", pod("p", containers={"sidecar": {"ready": False, "state": {"running": {}}}}))
    assert (found.area, found.reason) == ("sidecar", "SidecarNotReady")


def test_a_pod_is_ready_when_its_main_container_is_whatever_its_others_and_the_pod_itself_say() -> None:
    manifest = pod("p", containers={"sidecar": waiting("CrashLoopBackOff", exitCode=1)})
    manifest["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    read = read_pod("engine", manifest)
    assert read is not None
    assert read.is_ready


@pytest.mark.parametrize("gone", [{"deletionTimestamp": "2026-01-01T00:00:00Z"}, {}])
def test_pods_that_end_or_have_ended_do_not_count(gone: Json) -> None:
    manifest = pod("p", **gone)
    manifest["status"]["phase"] = "Running" if gone else "Failed"
    assert read_pod("engine", manifest) is None


def test_what_many_pods_have_in_common_is_told_once() -> None:
    text = tell([Problem("engine", "R", "broken", name) for name in ("b", "a", "c")] + [Problem("spec", "S", "no pod")])
    assert text == "a and 2 more: broken; no pod"


def test_an_injected_container_is_told_too() -> None:
    found = problem("engine", pod("p", containers={"mesh-proxy": waiting("ErrImagePull", "not found")}))
    assert found.text.startswith("container mesh-proxy: not found; check its image")


@pytest.mark.parametrize(
    ("references", "advice"),
    [
        ([{"name": "registry"}, {"name": "mirror"}], " and the Secrets that the pod pulls with: registry, mirror"),
        ([{}, {"name": "registry"}], " and the Secrets that the pod pulls with: registry"),
        (
            None,
            "; the pod pulls with no Secret: if its registry wants one, name it in the chart's images.pullSecrets, "
            "and delete the pod then",
        ),
    ],
)
def test_an_image_that_cannot_be_pulled_names_the_pull_secrets_that_the_pod_has_or_tells_how_to_give_one(
    references: list[Json] | None, advice: str
) -> None:
    state = waiting("ErrImagePull", "pull access denied")
    manifest = pod("p", ready=False, containers={"engine": state}) | {"spec": {"imagePullSecrets": references}}
    assert problem("engine", manifest).text == f"container engine: pull access denied; check spec.engine.image{advice}"


def test_a_quotation_is_one_short_line() -> None:
    found = problem("engine", pod("p", scheduling="a\nb\t" + "c" * 10_000))
    assert found.text.startswith("a b ccc")
    assert len(found.text) < 500
