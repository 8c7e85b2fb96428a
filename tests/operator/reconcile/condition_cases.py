"""The table of what can be known of a pool, and what its conditions say then."""

from typing import Any

from pagoda_operator.evidence import Condition, Evidence
from pagoda_operator.pods import Problem
from tests.operator.reconcile.objects import OLD, STUCK, Said, evidence, pod, said, waiting, workload

WELL = {
    "Ready": "True Serving", "Progressing": "False Complete", "Degraded": "False NoProblem",
    "CacheReady": "True Proved", "PoolReady": "True NotConfigured", "RoutingReady": "True Routing",
}  # fmt: skip
UNTOLD = {"CacheReady": "Unknown NotProven", "PoolReady": "Unknown NotProven"}
SILENT = Said(proof=said().proof, sidecar_reason="status 503")
REFUSED = {
    "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
    "message": 'pods "e-7x" is forbidden: exceeded quota',
}  # fmt: skip
CRASHING = waiting("CrashLoopBackOff", exitCode=1)
NO_IMAGE = waiting("ImagePullBackOff", "no such image")
NEW_POD = pod("e-new")
OLD_PODS = (pod("e-a", template=OLD), pod("e-b", template=OLD))


def nothing_yet(part: str) -> Any:
    return workload(part, desired=2, seen=False)


def follower(nodes: str, down: str = "") -> Said:
    """Return the words of a pod that follows a list of nodes, of which one may be down."""
    tiers = dict((said(pool="ok").summary or {})["tiers"])
    seen = {down: {"state": "down", "reason": "refused"}} if down else {}
    return said(pool="ok", summary={"tiers": tiers | {"pool": tiers["pool"] | {"list": nodes, "nodes": seen}}})


MUTE = Said(ready=None, generation=None, reason="silent", summary=said(pool="ok").summary)
ALL_WELL = {
    kind: Condition(kind, *short.split(), "as it was")
    for kind, short in {"Ready": "True Serving", "Progressing": "False Complete", "CacheReady": "True Proved",
                        "PoolReady": "True Proved"}.items()
}  # fmt: skip


CASES: dict[str, tuple[Evidence, dict[str, str]]] = {
    "all is well": (evidence(), {}),
    "nothing exists yet": (
        evidence(engine=nothing_yet("engine"), router=nothing_yet("router"), memcached=nothing_yet("memcached")),
        {
            "Ready": "False RollingOut", "Progressing": "True RollingOut", "RoutingReady": "False RoutersNotReady",
            "CacheReady": "Unknown NotProven", "PoolReady": "False NodesNotReady",
        },
    ),
    "the controller has not seen the newest template": (
        evidence(engine=workload("engine", pod("e-0"), pod("e-1"), seen=False)),
        {"Ready": "False RollingOut", "Progressing": "True RollingOut", **UNTOLD},
    ),
    "the first new pod is ready beside the old ones": (
        evidence(engine=workload("engine", NEW_POD, *OLD_PODS, desired=2, updated=1)),
        {"Ready": "False RollingOut", "Progressing": "True RollingOut", **UNTOLD},
    ),
    "all new pods are ready, an old one is left": (
        evidence(engine=workload("engine", pod("e-0"), pod("e-1"), OLD_PODS[0], desired=2)),
        {"Ready": "False RollingOut", "Progressing": "True RollingOut", **UNTOLD},
    ),
    "the controller counts fewer updated pods than bear the mark (kubectl rollout restart)": (
        evidence(engine=workload("engine", pod("e-0"), pod("e-1"), updated=1)),
        {"Ready": "False RollingOut", "Progressing": "True RollingOut", **UNTOLD},
    ),
    "a bad image beside old pods that serve": (
        evidence(engine=workload("engine", pod("e-new", ready=False, containers={"engine": NO_IMAGE}), *OLD_PODS,
                                 desired=2, updated=1)),
        {"Ready": "False RollingOut", "Progressing": "True RollingOut", "Degraded": "True ImagePullBackOff",
         **UNTOLD},
    ),
    "the deadline has passed": (
        evidence(engine=workload("engine", pod("e-new", ready=False, containers={"engine": NO_IMAGE}), *OLD_PODS,
                                 desired=2, updated=1, conditions=[STUCK])),
        {"Ready": "False RolloutStuck", "Progressing": "False RolloutStuck", "Degraded": "True RolloutStuck",
         **UNTOLD},
    ),
    "a deadline of a former generation": (
        evidence(engine=workload("engine", pod("e-0"), pod("e-1"), seen=False, conditions=[STUCK])),
        {"Ready": "False RollingOut", "Progressing": "True RollingOut", **UNTOLD},
    ),
    "pods that cannot be made": (
        evidence(engine=workload("engine", desired=2, updated=0, conditions=[REFUSED])),
        {"Ready": "False RollingOut", "Progressing": "True RollingOut", "Degraded": "True FailedCreate",
         **UNTOLD},
    ),
    "nodes that cannot be made": (
        evidence(memcached=workload("memcached", pod("m-0", "memcached"), desired=3, updated=1, made=1)),
        {"PoolReady": "False FailedCreate", "Progressing": "True RollingOut", "Degraded": "True FailedCreate"},
    ),
    "nodes that the controller has not seen yet": (
        evidence(memcached=workload("memcached", pod("m-0", "memcached"), desired=3, updated=1, made=1, seen=False)),
        {"PoolReady": "False NodesNotReady", "Progressing": "True RollingOut"},
    ),
    "a pod starts": (
        evidence(engine=workload("engine", pod("e-0"), pod("e-1", ready=False))),
        {"Ready": "False PodsNotReady", "Progressing": "True Starting", **UNTOLD},
    ),
    "a pod crashes again and again": (
        evidence(engine=workload("engine", pod("e-0"), pod("e-1", ready=False, containers={"engine": CRASHING}))),
        {"Ready": "False PodsNotReady", "Progressing": "False PodsNotReady", "Degraded": "True CrashLoopBackOff",
         **UNTOLD},
    ),
    "a pod is pending": (
        evidence(engine=workload("engine", pod("e-0"), pod("e-1", ready=False, scheduling="1 Insufficient memory"))),
        {"Ready": "False PodsNotReady", "Progressing": "False PodsNotReady", "Degraded": "True Unschedulable",
         **UNTOLD},
    ),
    "a sidecar crashes beside a serving engine": (
        evidence(engine=workload("engine", pod("e-0"), pod("e-1", containers={"sidecar": CRASHING}))),
        {"CacheReady": "False CrashLoopBackOff", "Degraded": "True CrashLoopBackOff",
         "PoolReady": "Unknown SidecarsNotReady"},
    ),
    "a sidecar says nothing": (
        evidence(reports={"e-0": said(), "e-1": SILENT}),
        {"CacheReady": "False SidecarSilent", "Degraded": "True SidecarSilent",
         "PoolReady": "Unknown SidecarsNotReady"},
    ),
    "a tier's proof failed": (
        evidence(reports={"e-0": said(), "e-1": said(ram="failed: torn")}),
        {"CacheReady": "False TierProofFailed", "Degraded": "True TierProofFailed"},
    ),
    "the pool's proof failed": (
        evidence(reports={"e-0": said(pool="ok"), "e-1": said(pool="failed: no node")}),
        {"PoolReady": "False TierProofFailed", "Degraded": "True TierProofFailed"},
    ),
    "a tier is off": (
        evidence(reports={"e-0": said(), "e-1": said(summary={"tiers": {"disk": {"state": "off", "reason": "full"}}})}),
        {"CacheReady": "False TierOff", "Degraded": "True TierOff"},
    ),
    "a node is down": (
        evidence(reports={"e-0": said(pool="ok"), "e-1": said(pool="ok", summary={"tiers": {"pool": {
            "state": "on", "nodes": {"m-0": {"state": "up"}, "m-1": {"state": "down", "reason": "refused"}}}}})}),
        {"PoolReady": "False NodeDown", "Degraded": "True NodeDown"},
    ),
    "pods take their KV for different models'": (
        evidence(reports={"e-0": said(), "e-1": said(summary={"namespace": "cd" * 32})}),
        {"CacheReady": "False NamespacesDiffer", "Degraded": "True NamespacesDiffer"},
    ),
    "no tier is asked for": (
        evidence(reports={"e-0": said(ram="none"), "e-1": said(ram="none")}), {"CacheReady": "True NotConfigured"},
    ),
    "no tier is asked for, and no pod has said anything": (
        evidence(reports={}, without=frozenset({"sidecar", "memcached"})),
        {"Ready": "False NotProven", "Progressing": "True Proving", "CacheReady": "True NotConfigured",
         "PoolReady": "True NotConfigured"},
    ),
    "no tier is asked for, and a sidecar crashes": (
        evidence(engine=workload("engine", pod("e-0"), pod("e-1", containers={"sidecar": CRASHING})),
                 without=frozenset({"sidecar", "memcached"})),
        {"CacheReady": "False CrashLoopBackOff", "Degraded": "True CrashLoopBackOff",
         "PoolReady": "True NotConfigured"},
    ),
    "no tier is asked for, and an engine does not know it": (
        evidence(reports={"e-0": said(ram="none"), "e-1": said(ram="failed: x", disk="failed: x", pool="failed: x")},
                 without=frozenset({"sidecar", "memcached"})),
        {"CacheReady": "True NotConfigured", "PoolReady": "True NotConfigured"},
    ),
    "a proof is of the tiers before something changed": (
        evidence(reports={"e-0": said(pool="ok"), "e-1": said(pool="ok", summary={"state": "later"})}),
        {"CacheReady": "Unknown NotProven", "PoolReady": "Unknown NotProven"},
    ),
    "a proof failed before something changed": (
        evidence(reports={"e-0": said(), "e-1": said(ram="failed: the sidecar is away", summary={"state": "later"})}),
        {"CacheReady": "Unknown NotProven", "PoolReady": "Unknown NotProven"},
    ),
    "an engine of a former release does not say of what its proof is": (
        evidence(reports={"e-0": said(), "e-1": said(proof=said().proof and {
            "generated": True, "tiers": {"ram": "ok", "disk": "none", "pool": "none"}})}),
        {},
    ),
    "a node was taken away, and a pod follows the former list": (
        evidence(reports={"e-0": follower("new"), "e-1": follower("old", down="m-3")}, live_nodes="new"),
        {"CacheReady": "True Proved", "PoolReady": "Unknown NotProven"},
    ),
    "the pool was taken away, and a pod follows its nodes yet": (
        evidence(reports={"e-0": follower("old", down="m-0"), "e-1": said()}, live_nodes="none",
                 without=frozenset({"memcached"})),
        {"CacheReady": "True Proved", "PoolReady": "True NotConfigured"},
    ),
    "an engine is silent, and another's proof is of before": (
        evidence(reports={"e-0": said(pool="ok", summary={"state": "later"}), "e-1": MUTE}, before=ALL_WELL),
        {"CacheReady": "Unknown NotProven", "PoolReady": "Unknown NotProven"},
    ),
    "an engine is silent, and another follows the former list": (
        evidence(reports={"e-0": follower("old"), "e-1": MUTE}, before=ALL_WELL, live_nodes="new"),
        {"CacheReady": "True Proved", "PoolReady": "Unknown NotProven"},
    ),
    "pods that crashed before are ready, and have said nothing yet": (
        evidence(reports={}, before={"Progressing": Condition("Progressing", "False", "PodsNotReady", "")}),
        {"Ready": "False NotProven", "Progressing": "True Proving", **UNTOLD},
    ),
    "a pod follows another list of nodes": (
        evidence(reports={"e-0": follower("new"), "e-1": follower("old")}, live_nodes="new"),
        {"CacheReady": "True Proved", "PoolReady": "Unknown NotProven"},
    ),
    "all pods follow the newest list of nodes": (
        evidence(reports={"e-0": follower("new"), "e-1": follower("new")}, live_nodes="new"),
        {"CacheReady": "True Proved", "PoolReady": "True Proved"},
    ),
    "a pod of a former release does not say which list it follows": (
        evidence(reports={"e-0": said(pool="ok"), "e-1": said(pool="ok")}, live_nodes="new"),
        {"PoolReady": "True Proved"},
    ),
    "memcached's rollout waits for a pod that cannot start": (
        evidence(memcached=workload("memcached", pod("m-0", "memcached", template=OLD),
                                    pod("m-1", "memcached", ready=False, containers={"memcached": CRASHING}))),
        {"PoolReady": "False CrashLoopBackOff", "Progressing": "False PodsNotReady",
         "Degraded": "True CrashLoopBackOff"},
    ),
    "memcached's rollout waits while engines roll": (
        evidence(engine=workload("engine", pod("e-0", template=OLD), pod("e-1")),
                 memcached=workload("memcached", pod("m-0", "memcached", template=OLD),
                                    pod("m-1", "memcached", ready=False, containers={"memcached": CRASHING}))),
        {"Ready": "False RollingOut", "PoolReady": "False CrashLoopBackOff", "Progressing": "True RollingOut",
         "Degraded": "True CrashLoopBackOff", "CacheReady": "Unknown NotProven"},
    ),
    "all tiers work": (
        evidence(reports={name: said(disk="ok", pool="ok") for name in ("e-0", "e-1")},
                 memcached=workload("memcached", pod("m-0", "memcached"))),
        {"PoolReady": "True Proved"},
    ),
    "a memcached node starts": (
        evidence(memcached=workload("memcached", pod("m-0", "memcached", ready=False))),
        {"PoolReady": "False NodesNotReady", "Progressing": "True Starting"},
    ),
    "an engine follows older live settings": (
        evidence(reports={"e-0": said(), "e-1": said(generation=2)}),
        {"Ready": "False NotProven", "Progressing": "True Proving"},
    ),
    "an engine has not generated a token": (
        evidence(reports={"e-0": said(), "e-1": said(proof={"generated": False, "tiers": {}})}),
        {"Ready": "False NotProven", "Progressing": "True Proving"},
    ),
    "an engine drains": (
        evidence(reports={"e-0": said(), "e-1": said(ready=False, reason="draining")}),
        {"Ready": "False NotProven", "Progressing": "True Proving"},
    ),
    "a pod has said nothing yet": (
        evidence(reports={"e-0": said()}), {"Ready": "False NotProven", "Progressing": "True Proving", **UNTOLD},
    ),
    "one of two routers starts": (
        evidence(router=workload("router", pod("r-0", "router"), pod("r-1", "router", ready=False))),
        {"RoutingReady": "False RoutersNotReady", "Progressing": "True Starting"},
    ),
    "no router answers": (
        evidence(router=workload("router", pod("r-0", "router", ready=False, containers={"router": CRASHING}))),
        {"Ready": "False RoutersNotReady", "RoutingReady": "False CrashLoopBackOff",
         "Degraded": "True CrashLoopBackOff", "Progressing": "False PodsNotReady"},
    ),
    "the routers are stuck while an engine crashes": (
        evidence(engine=workload("engine", pod("e-0"), pod("e-1", ready=False, containers={"engine": CRASHING})),
                 router=workload("router", pod("r-0", "router", ready=False), conditions=[STUCK])),
        {"Ready": "False RolloutStuck", "Progressing": "False RolloutStuck", "Degraded": "True RolloutStuck",
         "RoutingReady": "False RolloutStuck", **UNTOLD},
    ),
    "a new operator waits for its turn": (
        evidence(waiting="they are made once pool models/other is ready"), {"Progressing": "True WaitingForTurn"},
    ),
    "the routers roll": (
        evidence(router=workload("router", pod("r-0", "router", template=OLD), desired=1, updated=0)),
        {"Ready": "False RollingOut", "RoutingReady": "False RoutersNotReady", "Progressing": "True RollingOut"},
    ),
    "the spec is refused": (
        evidence(is_valid=False, problems=(Problem("spec", "InvalidSpec", "spec.replicas: is a string"),)),
        {"Ready": "False InvalidSpec", "Progressing": "False InvalidSpec", "Degraded": "True InvalidSpec"},
    ),
    "a name is taken": (
        evidence(problems=(Problem("spec", "NameClash", "Service chat-router is not ours"),)),
        {"Ready": "False NameClash", "Degraded": "True NameClash"},
    ),
    "a child is made anew": (
        evidence(pending=("Service chat-router is being deleted",)),
        {"Ready": "False Creating", "Progressing": "True Creating"},
    ),
}  # fmt: skip
