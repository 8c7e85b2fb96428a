"""The conditions of a pool: what is true of its newest generation, and what a person can do about it. Pure.

Never ahead of reality: Ready, CacheReady, PoolReady and RoutingReady are True only when every wanted pod of the newest
template has shown it. What cannot be told yet is Unknown, or for Ready False. Where pods that are ready have said
nothing yet, because the operator has just started, the last word about the same generation stands.
"""

from collections.abc import Sequence

from pagoda_operator import proofs
from pagoda_operator.evidence import FALSE, TRUE, UNKNOWN, Condition, Evidence
from pagoda_operator.names import ENGINE, MEMCACHED, ROUTER
from pagoda_operator.pods import SIDECAR, SPEC, Problem, tell
from pagoda_operator.workloads import Workload

MAX_MESSAGE = 2000


def judge(evidence: Evidence) -> tuple[Condition, ...]:
    """Return all conditions, in the order in which they are shown."""
    problems = _all_problems(evidence)
    return (
        _ready(evidence, problems),
        _progressing(evidence),
        _degraded(problems),
        _tiers("CacheReady", SIDECAR, evidence, problems),
        _tiers("PoolReady", MEMCACHED, evidence, problems),
        _routing(evidence, problems),
    )


def _all_problems(evidence: Evidence) -> list[Problem]:
    """Everything that is wrong, what stops most first."""
    pods = [pod for pod in evidence.engine.pods if pod.is_ready]
    found = [*evidence.problems, *(problem for workload in evidence.workloads for problem in workload.problems)]
    of_none = {(area, proofs.FAILED) for area in evidence.without}
    reported = [
        *proofs.tier_problems(pods, evidence.reports, evidence.live_nodes),
        *proofs.namespace_problems(evidence.engine.newest, evidence.reports),
    ]
    # An engine whose sidecar never answered does not know which tiers there are, and finds that all fail.
    reported = [problem for problem in reported if (problem.area, problem.reason) not in of_none]
    if any(not proofs.has_told(pod, evidence.reports) for pod in pods):
        reported += _remembered(evidence, {problem.area for problem in reported})
    return sorted((*found, *reported), key=_weight)


def _remembered(evidence: Evidence, told: set[str]) -> list[Problem]:
    """Problems that pods told of before the operator restarted, where none tells of any now."""
    former = [(area, evidence.before.get(kind)) for kind, area in _AREAS.items() if area not in told]
    return [
        Problem(area, condition.reason, condition.message)
        for area, condition in former
        if condition is not None and condition.status == FALSE and condition.reason in proofs.REPORTED
    ]


_AREAS = {"CacheReady": SIDECAR, "PoolReady": MEMCACHED}


def _weight(problem: Problem) -> int:
    if problem.area == SPEC:
        return 0
    return 1 if problem.reason == "RolloutStuck" else 2


def _ready(evidence: Evidence, problems: Sequence[Problem]) -> Condition:
    engine, router = evidence.engine, evidence.router
    of_spec = [problem for problem in problems if problem.area == SPEC]
    of_engine = [problem for problem in problems if problem.area in (ENGINE, SIDECAR)]
    why, silent = proofs.unproven(engine.pods, evidence.reports, evidence.live_generation)
    if of_spec:
        return _condition("Ready", FALSE, of_spec[0].reason, tell(of_spec))
    if evidence.pending:
        return _condition("Ready", FALSE, "Creating", "; ".join(evidence.pending))
    if engine.stuck is not None or router.stuck is not None:
        return _condition("Ready", FALSE, "RolloutStuck", tell([p for p in problems if p.area in (ENGINE, ROUTER)]))
    if not engine.is_rolled_out or not router.is_rolled_out:
        late = [workload.progress() for workload in (engine, router) if not workload.is_rolled_out]
        return _condition("Ready", FALSE, "RollingOut", _with("; ".join(late), of_engine))
    if engine.num_ready < engine.desired:
        return _condition("Ready", FALSE, "PodsNotReady", _with(engine.progress(), of_engine))
    if why:
        gaps = [Problem(ENGINE, "NotProven", text, pod) for pod, text in why.items()]
        return _condition("Ready", FALSE, "NotProven", tell(gaps))
    if silent and not _was(evidence, "Ready", TRUE):
        gaps = [
            Problem(ENGINE, "NotProven", "ready, but has not told the operator its proof yet", pod) for pod in silent
        ]
        return _condition("Ready", FALSE, "NotProven", tell(gaps))
    if router.num_ready == 0:
        of_router = [problem for problem in problems if problem.area == ROUTER]
        return _condition("Ready", FALSE, "RoutersNotReady", _with(router.progress(), of_router))
    text = f"{engine.num_ready} of {engine.desired} pods serve and have proved generation {evidence.generation}"
    return _condition("Ready", TRUE, "Serving", text)


def _progressing(evidence: Evidence) -> Condition:
    late = [workload for workload in evidence.workloads if not workload.is_rolled_out]
    starting = [workload for workload in evidence.workloads if not workload.is_complete]
    stuck = [workload for workload in evidence.workloads if workload.stuck is not None]
    text = "; ".join(workload.progress() for workload in late or starting)
    if not evidence.is_valid:
        return _condition(
            "Progressing", FALSE, "InvalidSpec", "the children are left as they are until the spec is right"
        )
    if stuck:
        return _condition("Progressing", FALSE, "RolloutStuck", f"{text}; nothing has moved within the deadline")
    if evidence.pending:
        return _condition("Progressing", TRUE, "Creating", "; ".join(evidence.pending))
    if late and not all(_is_blocked(workload) for workload in late):
        return _condition("Progressing", TRUE, "RollingOut", text)
    if any(workload.problems for workload in starting):
        return _condition("Progressing", FALSE, "PodsNotReady", f"{text}; see Degraded")
    if starting:
        return _condition("Progressing", TRUE, "Starting", text)
    why, silent = proofs.unproven(evidence.engine.pods, evidence.reports, evidence.live_generation)
    former = evidence.before.get("Progressing")
    if why or (silent and (former is None or former.reason != "Complete")):
        return _condition(
            "Progressing", TRUE, "Proving", f"{len(why) + len(silent)} pods have yet to prove the newest generation"
        )
    if evidence.waiting:
        return _condition("Progressing", TRUE, "WaitingForTurn", evidence.waiting)
    return _condition("Progressing", FALSE, "Complete", "all children are as the spec wants them")


def _is_blocked(workload: Workload) -> bool:
    """Whether a rollout waits for a pod that something is wrong with, where no deadline of a controller's tells so."""
    return workload.part == MEMCACHED and any(pod.problems for pod in workload.newest)


def _degraded(problems: Sequence[Problem]) -> Condition:
    if not problems:
        return _condition("Degraded", FALSE, "NoProblem", "nothing is known to be wrong")
    by_reason: dict[str, list[Problem]] = {}
    for problem in problems:
        by_reason.setdefault(problem.reason, []).append(problem)
    texts = [f"{reason}: {tell(group)}" for reason, group in by_reason.items()]
    return _condition("Degraded", TRUE, problems[0].reason, "; ".join(texts))


def _tiers(kind: str, area: str, evidence: Evidence, problems: Sequence[Problem]) -> Condition:
    """Tell of the tiers of `area`; of the pool also by its own nodes, where it manages them."""
    of_area = [problem for problem in problems if problem.area == area]
    engine, nodes = evidence.engine, evidence.memcached if area == MEMCACHED else None
    if of_area:
        return _condition(kind, FALSE, of_area[0].reason, tell(of_area))
    if area in evidence.without:
        return _not_configured(kind, area)
    if nodes is not None and not nodes.is_complete:
        return _condition(kind, FALSE, "NodesNotReady", nodes.progress())
    if area == MEMCACHED and any(problem.area == SIDECAR and problem.reason in _SICK for problem in problems):
        text = "sidecars are not there to reach it; see CacheReady"
        return _condition(kind, UNKNOWN, "SidecarsNotReady", text)
    if not engine.is_complete:
        return _condition(kind, UNKNOWN, "NotProven", f"{engine.progress()}; {_ONCE_PROVED}")
    return _proved(kind, area, evidence)


def _proved(kind: str, area: str, evidence: Evidence) -> Condition:
    """Tell of the tiers of `area` by what the pods have proved, all of which are there."""
    engine = evidence.engine
    reports = [evidence.reports[pod.name] for pod in engine.pods if proofs.has_told(pod, evidence.reports)]
    if area == MEMCACHED and any(proofs.follows_others(report, evidence.live_nodes) for report in reports):
        text = "pods follow another list of nodes yet; the newest one reaches them within two minutes"
        return _condition(kind, UNKNOWN, "NotProven", text)
    if not all(proofs.is_of_now(report) for report in reports):
        text = "something has changed, and pods prove their tiers anew"
        return _condition(kind, UNKNOWN, "NotProven", text)
    if len(reports) < len(engine.pods) and _was(evidence, kind, TRUE):
        return evidence.before[kind]
    if len(reports) < len(engine.pods) or not engine.pods:
        return _condition(kind, UNKNOWN, "NotProven", f"pods have not told how their tiers are; {_ONCE_PROVED}")
    tiers = proofs.tiers_of(engine.pods, evidence.reports, area)
    if not tiers:
        return _not_configured(kind, area)
    return _condition(
        kind, TRUE, "Proved", f"a block went through {' and '.join(tiers)} in every pod and came back equal"
    )


def _not_configured(kind: str, area: str) -> Condition:
    return _condition(kind, TRUE, "NotConfigured", f"the spec asks for none; set {_FIELDS[area]} to have it")


_ONCE_PROVED = "the tiers are known once every pod has proved them"
# What keeps a whole sidecar from working, not only tiers of its own.
_SICK = (proofs.SILENT, "SidecarNotReady", "CrashLoopBackOff", "OOMKilled", "ImagePullBackOff")
_FIELDS = {SIDECAR: "spec.cache.ram", MEMCACHED: "spec.cache.ram and spec.cache.pool"}


def _routing(evidence: Evidence, problems: Sequence[Problem]) -> Condition:
    router = evidence.router
    of_router = [problem for problem in problems if problem.area == ROUTER]
    if router.is_complete:
        return _condition("RoutingReady", TRUE, "Routing", f"{router.num_ready} of {router.desired} routers are ready")
    if of_router:
        return _condition("RoutingReady", FALSE, of_router[0].reason, tell(of_router))
    return _condition("RoutingReady", FALSE, "RoutersNotReady", router.progress())


def _was(evidence: Evidence, kind: str, status: str) -> bool:
    former = evidence.before.get(kind)
    return former is not None and former.status == status


def _with(text: str, problems: Sequence[Problem]) -> str:
    return f"{text}; {tell(problems)}" if problems else text


def _condition(kind: str, status: str, reason: str, message: str) -> Condition:
    return Condition(kind, status, reason, message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 1]}…")
