"""What pods' own statuses are taken to say."""

from datetime import UTC, datetime
from typing import Any

import pytest

from pagoda_operator.pods import Problem, read_pod, tell
from pagoda_operator.status import timestamp
from tests.operator.reconcile.objects import NOW, pod, waiting

Json = dict[str, Any]


def problem(part: str, manifest: Json) -> Problem:
    read = read_pod(part, manifest, NOW)
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
            "exit code 1",
        ),
        (waiting("CrashLoopBackOff", "back-off 20s", exitCode=137, reason="OOMKilled"), "OOMKilled", "memory"),
        (
            {"ready": False, "state": {"running": {}}, "lastState": {"terminated": {"exitCode": 2}}},
            "CrashLoopBackOff",
            "code 2",
        ),
        ({"ready": False, "state": {"terminated": {"exitCode": 3}}}, "CrashLoopBackOff", "code 3"),
        (waiting("CrashLoopBackOff", "back-off 20s", exitCode=0), "CrashLoopBackOff", "by a probe or a signal"),
        (waiting("SignatureValidationFailed", "not signed"), "ImagePullBackOff", "not signed"),
        (waiting("PostStartHookError", "exited with 1"), "PostStartHookError", "exited with 1"),
    ],
)
@pytest.mark.parametrize("name", ["engine", "sidecar"])
def test_a_container_that_does_not_run_says_why_and_whose_it_is(
    name: str, state: Json, reason: str, words: str
) -> None:
    found = problem("engine", pod("p", ready=False, containers={name: state}))
    assert (found.area, found.reason, found.pod) == (name, reason, "p")
    assert words in found.text


@pytest.mark.parametrize("code", [0, 1])
def test_an_end_is_told_in_the_same_words_while_the_kubelet_waits_tries_and_fails(code: int) -> None:
    last = {"exitCode": code, "reason": "Error"}
    states = [
        waiting("CrashLoopBackOff", "back-off 10s restarting", **last),
        waiting("CrashLoopBackOff", "back-off 5m0s restarting", **last),
        {"ready": False, "restartCount": 7, "state": {"running": {}}, "lastState": {"terminated": last}},
        {"ready": False, "state": {"terminated": last}, "lastState": {"terminated": last}},
    ]
    assert len({problem("engine", pod("p", ready=False, containers={"engine": state})) for state in states}) == 1


@pytest.mark.parametrize("program", ["engine", "sidecar-supervisor"])
def test_a_crash_is_told_with_the_last_words_of_its_log_which_are_the_same_at_each_try(program: str) -> None:
    logs = [
        f"2026-11-30T17:0{minute}:00.000Z INFO {program}[p] listening\n"
        f"2026-11-30T17:0{minute}:01.000Z ERROR {program}[p] cannot start: --model-path /m: no such file\n"
        for minute in range(2)
    ]
    states = [waiting("CrashLoopBackOff", exitCode=1, message=log) for log in logs]
    [text] = {tell([problem("engine", pod("p", ready=False, containers={"engine": state}))]) for state in states}
    assert text.endswith("(kubectl logs -c engine --previous), which ends: cannot start: --model-path /m: no such file")


def test_pods_that_crash_alike_are_told_once_though_their_words_differ() -> None:
    states = {name: waiting("CrashLoopBackOff", exitCode=1, message=f"process {name}") for name in "abc"}
    problems = [problem("engine", pod(name, containers={"engine": state})) for name, state in states.items()]
    told = tell([*reversed(problems), Problem("memcached", "ImagePullBackOff", "no image", "m")])
    assert told.startswith("a and 2 more: container engine crashed")
    assert "which ends: process a; m: no image" in told
    assert "process b" not in told


def test_a_crash_that_its_log_does_not_explain_is_told_without_it() -> None:
    killed = waiting("CrashLoopBackOff", exitCode=137, message="2026-11-30T17:00:00.000Z INFO engine[p] progress 31%")
    assert "which ends" not in tell([problem("engine", pod("p", ready=False, containers={"engine": killed}))])


def test_a_signal_is_not_explained_by_an_error_that_was_logged_long_before() -> None:
    killed = waiting(
        "CrashLoopBackOff", exitCode=137, message="Traceback (most recent call last)\n  f()\nValueError: x"
    )
    assert "ValueError" not in tell([problem("engine", pod("p", ready=False, containers={"engine": killed}))])


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
    read = read_pod("engine", pod("p", ready=False, containers={"engine": state}), NOW)
    assert read is not None
    assert read.problems == ()


def test_a_sidecar_that_is_not_ready_beside_a_serving_engine_is_told() -> None:
    found = problem("engine", pod("p", containers={"sidecar": {"ready": False, "state": {"running": {}}}}))
    assert (found.area, found.reason) == ("sidecar", "SidecarNotReady")


def test_a_pod_is_ready_when_its_main_container_is_whatever_its_others_and_the_pod_itself_say() -> None:
    manifest = pod("p", containers={"sidecar": waiting("CrashLoopBackOff", exitCode=1)})
    manifest["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    read = read_pod("engine", manifest, NOW)
    assert read is not None
    assert read.is_ready


@pytest.mark.parametrize("gone", [{"deletionTimestamp": "2026-01-01T00:00:00Z"}, {}])
def test_pods_that_end_or_have_ended_do_not_count(gone: Json) -> None:
    manifest = pod("p", **gone)
    manifest["status"]["phase"] = "Running" if gone else "Failed"
    assert read_pod("engine", manifest, NOW) is None


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


def unprepared(since: float, **changes: Any) -> Json:
    """Return a pod that has had its node since then, and waits for what it mounts."""
    manifest = pod("p", ready=False, containers={"engine": waiting("ContainerCreating")})
    moment = timestamp(datetime.fromtimestamp(since, UTC))
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": moment},
        {"type": "PodReadyToStartContainers", "status": changes.get("prepared", "False")},
    ]
    manifest["status"] |= {"phase": "Pending", "conditions": conditions}
    manifest["spec"] = {
        "volumes": [
            {"name": "keys", "secret": {"secretName": "tenants"}},
            {"name": "maybe", "secret": {"secretName": "absent", "optional": True}},
            {"name": "settings", "configMap": {"name": "chat-settings"}},
            {"name": "weights", "persistentVolumeClaim": {"claimName": "weights"}},
            {"name": "disk", "ephemeral": {}},
            {"name": "tmp", "emptyDir": {}},
        ]
    }
    return manifest


def test_a_pod_that_waits_for_what_it_mounts_names_it() -> None:
    found = problem("engine", unprepared(NOW - 120))
    assert (found.area, found.reason, found.pod) == ("engine", "VolumesNotReady", "p")
    things = "ConfigMap chat-settings, PersistentVolumeClaim weights, Secret tenants, the claim of volume disk"
    assert f"(see that these are there: {things})" in found.text, "the same for all pods of a part"


@pytest.mark.parametrize("manifest", [unprepared(NOW - 119), unprepared(NOW - 9999, prepared="True")])
def test_a_pod_is_left_time_to_mount_and_to_pull_its_images(manifest: Json) -> None:
    read = read_pod("engine", manifest, NOW)
    assert read is not None
    assert read.problems == ()


def test_what_a_container_said_before_does_not_explain_an_image_that_is_gone_now() -> None:
    gone = waiting("ImagePullBackOff", "no such image", exitCode=1, message="no weights")
    assert "no weights" not in tell([problem("engine", pod("p", containers={"engine": gone}))])


def test_what_a_container_said_is_one_short_line_however_long_and_odd_it_was() -> None:
    odd = "Traceback\n\x1b[31mValueError:\ud800 \x00" + "x" * 5000
    text = tell(
        [problem("engine", pod("p", containers={"engine": waiting("CrashLoopBackOff", exitCode=1, message=odd)}))]
    )
    assert text.isprintable()
    assert len(text) < 600
