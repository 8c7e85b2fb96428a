"""Each broken precondition, by its code; and what is not broken, although it may look so."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pagoda_cli.doctor.checks import examine
from pagoda_cli.doctor.codes import CODES
from pagoda_cli.doctor.snapshot import Answer, Review, Snapshot, Unread
from tests.cli.doctor.healthy import (
    JUST_NOW,
    LONG_AGO,
    MEMCACHED_SECRET,
    POOL_SECRET,
    answer,
    healthy,
    lease,
    node,
    operator,
    pool,
    with_pool,
)

Change = Callable[[Snapshot], Snapshot]


def pulling(deployment: dict[str, Any]) -> dict[str, Any]:
    """An operator whose pools' pods are to pull with a Secret."""
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container["args"].append("--image-pull-secret=registry")
    return deployment


def has(**fields: Any) -> Change:
    return lambda good: replace(good, **fields)


def crd(change: Callable[[Any], object]) -> Change:
    def broken(good: Snapshot) -> Snapshot:
        changed = copy.deepcopy(good.crd)
        change(changed)
        return replace(good, crd=changed)

    return broken


def fields_of(definition: Any) -> Any:
    return definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]


def the_pool(change: Callable[[Any], object]) -> Change:
    def broken(good: Snapshot) -> Snapshot:
        changed = pool()
        change(changed)
        return replace(good, pools=(changed,))

    return broken


def first(field: str, change: Callable[[Any], object]) -> Change:
    """Change the first object of a list."""

    def broken(good: Snapshot) -> Snapshot:
        objects = copy.deepcopy(getattr(good, field))
        change(objects[0])
        return replace(good, **{field: objects})

    return broken


def container(name: str, state: dict[str, Any], ended: dict[str, Any] | None = None) -> Change:
    status = {"name": name, "restartCount": 7, "state": state, "lastState": {"terminated": ended} if ended else {}}
    return first("pods", lambda it: it["status"].update(containerStatuses=[status]))


def waiting(reason: str, message: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def says(**changes: Any) -> Change:
    """Have the first pod say something else."""
    return lambda good: replace(good, answers=dict(good.answers) | {("shop", "chat-engine-0"): answer(**changes)})


def tier(name: str, **said: Any) -> dict[str, Any]:
    tiers = dict((answer().summary or {})["tiers"])
    return {"tiers": tiers | {name: tiers[name] | said}}


def without(child: str) -> Change:
    kept = [each for each in healthy().deployments or () if each["metadata"]["name"] != child]
    return has(deployments=tuple(kept))


def policy(pods: dict[str, str], namespace: str = "shop", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "strict", "namespace": namespace},
        "spec": {"podSelector": {"matchLabels": pods}, **spec},
    }


def part(name: str) -> dict[str, str]:
    return {"pagoda-kv.io/part": name}


def event(kind: str, name: str, reason: str, message: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "e", "namespace": "shop"},
        "involvedObject": {"kind": kind, "name": name},
        "reason": reason,
        "message": message,
        "lastTimestamp": JUST_NOW,
    }


def unscheduled(it: Any) -> None:
    it["status"] = {
        "phase": "Pending",
        "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no memory"}
        ],
    }


def starting(it: Any) -> None:
    it["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": LONG_AGO}],
        "containerStatuses": [{"name": "engine", "restartCount": 0, "state": waiting("ContainerCreating", "")}],
    }


def refused(it: Any) -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota: gpus"}
    it["status"] = {"conditions": [failure]}


def two_codecs(good: Snapshot) -> Snapshot:
    pods = copy.deepcopy(good.pods or ())
    words = next(each for each in pods[0]["spec"]["containers"] if each["name"] == "engine")["args"]
    words[words.index("--codec") + 1] = "Int8"
    return replace(good, pods=pods)


def two_block_sizes(good: Snapshot) -> Snapshot:
    pods = copy.deepcopy(good.pods or ())
    words = next(each for each in pods[0]["spec"]["containers"] if each["name"] == "engine")["args"]
    words[words.index("--block-tokens") + 1] = "64"
    return replace(good, pods=pods)


def second_budget(good: Snapshot) -> Snapshot:
    budget = {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "mine", "namespace": "shop"},
        "spec": {"selector": {"matchLabels": part("engine")}, "minAvailable": 1},
    }
    return replace(good, budgets=(*(good.budgets or ()), budget))


def tight_budget(it: Any) -> None:
    it["status"] = {"currentHealthy": 2, "expectedPods": 2, "disruptionsAllowed": 0}


OOM = {"reason": "OOMKilled", "exitCode": 137, "finishedAt": JUST_NOW}
CRASH = {"reason": "Error", "exitCode": 3, "message": "no CUDA device"}
DENY = {"policyTypes": ["Ingress", "Egress"]}

TABLE: list[tuple[str, str, Change]] = [
    ("PGD001", "inferencepools.pagoda-kv.io", has(crd=None)),
    ("PGD002", "v1alpha1 is not served", crd(lambda it: it["spec"]["versions"][0].update(served=False))),
    ("PGD002", "served: none", crd(lambda it: it["spec"]["versions"][0].update(name="v1", served=False))),
    ("PGD002", "NamesAccepted is False: taken", crd(lambda it: it.update(status={"conditions": [
        {"type": "NamesAccepted", "status": "False", "message": "taken"}]}))),
    ("PGD002", "stored as v1alpha0", crd(lambda it: it.update(status={"storedVersions": ["v1alpha0", "v1alpha1"]}))),
    ("PGD003", "fields missing: spec.drainSeconds", crd(lambda it: fields_of(it).pop("drainSeconds"))),
    ("PGD003", "does not know: spec.more", crd(lambda it: fields_of(it).update(more={"type": "string"}))),
    ("PGD003", "other bounds", crd(lambda it: fields_of(it)["drainSeconds"].update(maximum=9))),
    ("PGD003", "last written by kubectl-edit", crd(lambda it: (
        fields_of(it).pop("drainSeconds"),
        it["metadata"].update(managedFields=[
            {"manager": "helm", "time": LONG_AGO, "fieldsV1": {"f:spec": {}}},
            {"manager": "kubectl-edit", "time": JUST_NOW, "fieldsV1": {"f:spec": {}}},
            {"manager": "kube-apiserver", "time": "2027-01-01T00:00:00Z", "fieldsV1": {"f:status": {}}}])))),
    ("PGD003", "last written by helm or kubectl-edit at", crd(lambda it: (
        fields_of(it).pop("drainSeconds"),
        it["metadata"].update(managedFields=[
            {"manager": "kubectl-edit", "time": JUST_NOW, "fieldsV1": {"f:spec": {}}},
            {"manager": "helm", "time": JUST_NOW, "fieldsV1": {"f:spec": {}}}])))),
    ("PGD004", "Inference Extension", has(other_crd={"kind": "CustomResourceDefinition", "metadata": {"name": "x"}})),
    ("PGD010", "no namespace", has(operators=())),
    ("PGD011", "0 of 2 pods are available", first("operators", lambda it: it.update(status={}))),
    ("PGD011", "exceeded quota", first("operators", refused)),
    ("PGD012", "there is no such Lease", has(leases={("pagoda", "pagoda"): None})),
    ("PGD012", "nobody holds it", has(leases={("pagoda", "pagoda"): lease(holder="")})),
    ("PGD012", "pagoda-abc holds it and last renewed it 3600 s ago", has(
        leases={("pagoda", "pagoda"): lease(LONG_AGO)})),
    ("PGD013", "it may not patch pods in all namespaces", has(
        reviews=(Review("pagoda/pagoda", "patch pods in all namespaces", False),))),
    ("PGD014", "no operator serves namespace shop", has(operators=(operator(serves=("a", "b")),))),
    ("PGD015", "other/second serves all namespaces too", has(
        operators=(operator(), operator("second", namespace="other")))),
    ("PGD015", "serves namespaces shop too", has(
        operators=(operator(), operator("second", namespace="other", serves=("shop",))))),
    ("PGD020", "NodeGone: look there", the_pool(lambda it: it["status"]["conditions"][0].update(
        status="False", reason="NodeGone", message="look there"))),
    ("PGD021", "generation 2, the spec of 3", the_pool(lambda it: it["status"].update(observedGeneration=2))),
    ("PGD021", "generation 0, the spec of 3", the_pool(lambda it: it.pop("status"))),
    ("PGD022", "made for chat, it is not there", has(secrets={("shop", POOL_SECRET): None})),
    ("PGD022", "named by spec.tenancy.apiKeysSecretRef", lambda good: replace(
        with_pool(good, tenancy={"apiKeysSecretRef": {"name": "keys"}}), secrets={("shop", "keys"): None})),
    ("PGD023", "lacks digest", has(secrets={("shop", POOL_SECRET): frozenset({"pool"})})),
    ("PGD023", "lacks username, auth", has(secrets={("shop", MEMCACHED_SECRET): frozenset({"password"})})),
    ("PGD024", "get secrets in namespace shop", has(
        unread=(Unread("get secrets in namespace shop", "forbidden", True),))),
    ("PGD029", "named by images.pullSecrets", lambda good: replace(
        good, operators=[pulling(operator())], secrets={**good.secrets, ("shop", "registry"): None})),
    ("PGD025", "storageClassName is fast; the cluster has slow", has(
        storage_classes=({"kind": "StorageClass", "metadata": {"name": "slow"}},))),
    ("PGD026", "does not own it", first("deployments", lambda it: it["metadata"].pop("ownerReferences"))),
    ("PGD026", "does not own it", first("services", lambda it: it["metadata"]["ownerReferences"][0].update(uid="x"))),
    ("PGD027", "pool chat has none", without("chat-router")),
    ("PGD027", "pool chat has none", has(stateful_sets=())),
    ("PGD028", "spec.replicas", the_pool(lambda it: it["spec"].update(replicas=-1))),
    ("PGD030", "no node offers any", has(nodes=(node(gpus="0"),))),
    ("PGD030", "no node offers any", has(nodes=())),
    ("PGD030", "no node offers any", first("nodes", lambda it: it["spec"].update(unschedulable=True))),
    ("PGD031", "have room for 1", has(nodes=(node(gpus="1"),))),
    ("PGD032", "the largest node offers 4.0Gi", has(nodes=(node(memory="4096Mi"),))),
    ("PGD040", "Unschedulable: 0/3 nodes: no memory", first("pods", unscheduled)),
    ("PGD041", "engine: ImagePullBackOff: no such image", container(
        "engine", waiting("ImagePullBackOff", "no such image"))),
    ("PGD042", "sidecar: 7 restarts; Error, exit code 3: no CUDA device", container(
        "sidecar", waiting("CrashLoopBackOff", "back-off"), CRASH)),
    ("PGD043", 'secret "keys" not found', container(
        "engine", waiting("CreateContainerConfigError", 'secret "keys" not found'))),
    ("PGD044", "exceeded quota: gpus", first("deployments", refused)),
    ("PGD044", "violates PodSecurity", lambda good: replace(
        first("stateful_sets", lambda it: it.update(status={"replicas": 1}))(good),
        warnings=(event("StatefulSet", "chat-memcached", "FailedCreate", "violates PodSecurity"),))),
    ("PGD045", "engine: at", container("engine", {"running": {}}, OOM)),
    ("PGD046", "for 3600 s; FailedMount: no such claim", lambda good: replace(
        first("pods", starting)(good), warnings=(event("Pod", "chat-engine-0", "FailedMount", "no such claim"),))),
    ("PGD046", "no warning was given", first("pods", starting)),
    ("PGD050", "chat-engine-0; ", says(namespace="00" * 32)),
    ("PGD051", "16: chat-engine-1; 64: chat-engine-0", two_block_sizes),
    ("PGD052", "1: chat-engine-0; 2: chat-engine-1", says(protocol=1)),
    ("PGD053", "Int8: chat-engine-0; Raw: chat-engine-1", two_codecs),
    ("PGD054", "disk: disk full", says(**tier("disk", state="off", reason="disk full"))),
    ("PGD055", "1 of 2 pods miss it (chat-engine-0): refused", says(
        **tier("pool", nodes={"chat-memcached-0": {"state": "down", "reason": "refused"}}))),
    ("PGD056", "sidecar: connection refused", has(answers={
        ("shop", "chat-engine-0"): Answer({}, "", None, "connection refused")})),
    ("PGD056", "engine: status 500", has(answers={("shop", "chat-engine-0"): Answer(None, "status 500", {}, "")})),
    ("PGD057", "disk: failed: bytes differ", has(answers={("shop", "chat-engine-0"): Answer(
        {"proof": {"tiers": {"ram": "ok", "disk": "failed: bytes differ"}}}, "", {}, "")})),
    ("PGD058", "40 pods", has(num_not_asked=40)),
    ("PGD060", "port 8000: nothing allows it in ingress of shop/strict", has(policies=(
        policy(part("engine"), ingress=[{"ports": [{"port": "sidecar"}]}]),))),
    ("PGD060", "nothing allows it in egress of shop/strict", has(policies=(policy(part("router"), **DENY),))),
    ("PGD061", "port 8001: nothing allows it in ingress of shop/strict", has(policies=(
        policy(part("engine"), ingress=[{"from": [{"podSelector": {}}]}]),))),
    ("PGD061", "egress of pagoda/strict", has(policies=(policy({}, namespace="pagoda", **DENY),))),
    ("PGD062", "ingress of shop/strict", has(policies=(policy(part("memcached"), **DENY),))),
    ("PGD063", "router pods to DNS", has(policies=(
        policy(part("router"), policyTypes=["Egress"], egress=[{"to": [{"podSelector": {}}]}]),))),
    ("PGD064", "3 NetworkPolicies", has()),
    ("PGD070", "selected by chat-engine, mine", second_budget),
    ("PGD071", "2 of 2 pods are healthy and 0 may go", first("budgets", tight_budget)),
    ("PGD090", "the right to list nodes is missing: forbidden", has(unread=(Unread("list nodes", "forbidden", True),))),
    ("PGD091", "list nodes: timed out", has(unread=(Unread("list nodes", "timed out", False),))),
]  # fmt: skip


@pytest.mark.parametrize(("code", "words", "change"), TABLE)
def test_k13_a_broken_precondition_is_named_by_its_code(code: str, words: str, change: Change) -> None:
    found = examine(change(healthy()))
    seen = [f"{finding.place}: {finding.seen}" for finding in found if finding.code == code]
    assert any(words in text for text in seen), [(finding.code, finding.seen) for finding in found]


def test_nothing_is_broken_in_a_healthy_cluster() -> None:
    assert [finding.code for finding in examine(healthy())] == ["PGD064"]


def test_k13_the_table_breaks_everything_that_has_a_code() -> None:
    assert {code for code, _, _ in TABLE} == set(CODES) - {"PGD099"}  # the last is of a cluster that cannot be read


def test_of_what_was_not_read_nothing_is_said() -> None:
    unseen = has(
        crd=None, is_crd_known=False, operators=None, nodes=None, storage_classes=None, deployments=None,
        stateful_sets=None, services=None, pods=None, policies=None, budgets=None, secrets={}, leases={}, answers={},
    )  # fmt: skip
    assert examine(unseen(healthy())) == ()


GOOD: list[tuple[str, Change]] = [
    ("a pool that was just made has no status and no children yet", lambda good: replace(
        the_pool(lambda it: (it.pop("status"), it["metadata"].update(creationTimestamp=JUST_NOW)))(good),
        deployments=(), services=(), stateful_sets=(), secrets={("shop", POOL_SECRET): None})),
    ("a change of a moment ago is not in the status yet", the_pool(lambda it: (
        it["status"].update(observedGeneration=2),
        it["metadata"].update(managedFields=[{"manager": "kubectl", "time": JUST_NOW}])))),
    ("a pod that is going may be in any state", first("pods", lambda it: (
        unscheduled(it), it["metadata"].update(deletionTimestamp=JUST_NOW)))),
    ("pods that are starting have said nothing yet", first("pods", lambda it: it["status"].update(
        phase="Pending", containerStatuses=[], conditions=[
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": JUST_NOW}]))),
    ("a disk tier without a class lives on the node", lambda good: replace(with_pool(
        good, cache={"ram": {"size": "2Gi"}, "disk": {"size": "8Gi"}}), storage_classes=(), secrets={})),
    ("two operators that share no namespace", has(
        operators=(operator(serves=("shop",)), operator("second", namespace="other", serves=("yard",))))),
    ("a pod without an engine's flags", first("pods", lambda it: it["spec"].update(containers=[]))),
    ("a budget of pods that are not all healthy", first("budgets", lambda it: it.update(
        status={"currentHealthy": 1, "expectedPods": 2, "disruptionsAllowed": 0}))),
    ("an address block may hold any pod", has(policies=(
        policy({}, ingress=[{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]),))),
]  # fmt: skip


@pytest.mark.parametrize(("what", "change"), GOOD)
def test_what_only_looks_broken_is_not(what: str, change: Change) -> None:
    assert {finding.code for finding in examine(change(healthy()))} <= {"PGD064"}, what


NONSENSE: list[Any] = [
    None,
    7,
    "text",
    [],
    {},
    {"tiers": 7},
    {"tiers": {"ram": 7, "pool": {"nodes": [1]}}, "namespace": []},
]


@pytest.mark.parametrize("said", NONSENSE)
def test_a_pod_may_say_anything(said: Any) -> None:
    odd = said if isinstance(said, dict) else {"tiers": said, "proof": said, "namespace": said}
    examine(
        replace(healthy(), answers={("shop", "chat-engine-0"): Answer(odd | {"proof": {"tiers": said}}, "", odd, "")})
    )


def test_what_a_pod_says_stays_one_short_line() -> None:
    odd = "a\n\x1b[31m\ud800" + "x" * 9999
    found = examine(says(namespace=odd, **tier("ram", state="off", reason=odd))(healthy()))
    texts = [finding.seen for finding in found if finding.code in ("PGD050", "PGD054")]
    assert len(texts) == 2
    for text in texts:
        assert text.isprintable()
        assert len(text) < 300


def test_of_a_crashed_container_s_log_the_error_alone_is_told() -> None:
    head = "2026-11-30T17:00:00.000Z {} engine[chat-0] "
    log = f"{head.format('INFO')}progress weights 3%\n{head.format('ERROR')}cannot start: \x1b[31mno weights\n"
    pod = healthy().pods[0] if healthy().pods else None
    assert pod is not None
    crashed = {
        "name": "engine",
        "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 1, "message": log}},
    }
    sick = {**pod, "status": {**pod["status"], "containerStatuses": [crashed]}}
    [found] = [one for one in examine(replace(healthy(), pods=(sick,))) if one.code == "PGD042"]
    assert found.seen.endswith("exit code 1: cannot start:  [31mno weights")


def test_the_worst_comes_first() -> None:
    found = examine(has(operators=(), num_not_asked=1, unread=(Unread("list nodes", "x", True),))(healthy()))
    assert [finding.severity for finding in found] == sorted((f.severity for f in found), reverse=True)
