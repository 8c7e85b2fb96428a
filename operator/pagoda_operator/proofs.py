"""What pods say of themselves, put together: which have proved the newest generation, which tiers work. Pure.

A pod that has said nothing yet (after a change of leader: for up to a minute) is unknown, neither good nor bad.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from pagoda_operator.names import MEMCACHED
from pagoda_operator.pods import SIDECAR, Pod, Problem

TIERS = {"ram": SIDECAR, "disk": SIDECAR, "pool": MEMCACHED}  # and what suffers when one fails
FAILED, OFF, NODE_DOWN = "TierProofFailed", "TierOff", "NodeDown"
SILENT, DIFFERENT = "SidecarSilent", "NamespacesDiffer"
REPORTED = (FAILED, OFF, NODE_DOWN, SILENT, DIFFERENT)
"""The reasons that only pods' own words can give."""


class Report(Protocol):
    """The newest words of a pod, as the fleet has them."""

    @property
    def ready(self) -> bool | None:
        """What the engine says; None: it did not answer."""

    @property
    def generation(self) -> int | None:
        """Of the live settings it follows."""

    @property
    def proof(self) -> Mapping[str, Any] | None:
        """Whether it generated a token, and what each tier's round trip came to."""

    @property
    def reason(self) -> str:
        """Why `ready` is not True."""

    @property
    def summary(self) -> Mapping[str, Any] | None:
        """What the sidecar says; None: it did not answer."""

    @property
    def sidecar_reason(self) -> str:
        """Why `summary` is None."""


Reports = Mapping[str, Report]  # by pod name; a pod that is not in it has said nothing yet


def unproven(pods: Sequence[Pod], reports: Reports, live_generation: int | None) -> tuple[Mapping[str, str], list[str]]:
    """Return why some ready pods have not proved the newest generation, and which ones have not said anything."""
    why: dict[str, str] = {}
    silent: list[str] = []
    for pod in pods:
        report = reports.get(pod.name)
        if report is None or report.ready is None:
            silent.append(pod.name)
        elif (gap := _gap(report, live_generation)) is not None:
            why[pod.name] = gap
    return why, silent


def tier_problems(pods: Sequence[Pod], reports: Reports, nodes: str | None) -> list[Problem]:
    """Return what is wrong with tiers in ready pods, by their own words; `nodes` marks the list they have to follow."""
    said = [(pod.name, reports[pod.name]) for pod in pods if pod.name in reports]
    return [problem for name, report in said for problem in _pod_problems(name, report, nodes)]


def namespace_problems(pods: Sequence[Pod], reports: Reports) -> list[Problem]:
    """Tell of pods of one template that share nothing, because each takes its KV for another model's."""
    names: dict[str, list[str]] = {}
    for pod in pods:
        summary = reports[pod.name].summary if pod.name in reports else None
        if summary is not None and summary.get("namespace"):
            names.setdefault(summary["namespace"], []).append(pod.name)
    if len(names) < 2:
        return []
    groups = "; ".join(f"{sorted(group)[0]} ({len(group)} pods): {name[:12]}" for name, group in sorted(names.items()))
    advice = "their nodes differ in hardware or weights; set spec.engine.kvCache.dtype, or choose equal nodes"
    return [Problem(SIDECAR, DIFFERENT, f"pods resolve to different namespaces and share no KV ({groups}); {advice}")]


def has_told(pod: Pod, reports: Reports) -> bool:
    """Whether both halves of a pod have said how its tiers are."""
    report = reports.get(pod.name)
    return report is not None and report.summary is not None and report.proof is not None


def is_of_now(report: Report) -> bool:
    """Whether the engine's proof is of the tiers as its sidecar has them now, as far as both say."""
    return is_proof_of(report.summary, report.proof)


def is_proof_of(summary: Mapping[str, Any] | None, proof: Mapping[str, Any] | None) -> bool:
    """Whether `proof` is of the tiers as `summary` has them, as far as both say."""
    proven, now = (proof or {}).get("state"), (summary or {}).get("state")
    return None in (proven, now) or proven == now


def follows_others(report: Report, nodes: str | None) -> bool:
    """Whether the sidecar says that it follows another list of memcached nodes than the one of mark `nodes`."""
    followed = (report.summary or {}).get("tiers", {}).get("pool", {}).get("list")
    return None not in (nodes, followed) and followed != nodes


def tiers_of(pods: Sequence[Pod], reports: Reports, area: str) -> list[str]:
    """Return which tiers of `area` the pods have, in order; pods that have said nothing have none."""
    proofs = [report.proof for pod in pods if (report := reports.get(pod.name)) is not None and report.proof]
    tiers = [tier for tier, suffers in TIERS.items() if suffers == area]
    return [tier for tier in tiers if any(proof["tiers"].get(tier, "none") != "none" for proof in proofs)]


def hit_ratio(pods: Sequence[Pod], reports: Reports) -> float | None:
    """Return the mean over the pods that know theirs, None if none does."""
    summaries = [reports[pod.name].summary or {} for pod in pods if pod.name in reports]
    ratios = [ratio for summary in summaries if (ratio := summary.get("hit_ratio")) is not None]
    return sum(ratios) / len(ratios) if ratios else None


def _gap(report: Report, live_generation: int | None) -> str | None:
    if not report.ready:
        return report.reason or "not ready"
    if report.proof is None or not report.proof["generated"]:
        return "it has not generated a token yet"
    if live_generation is not None and (report.generation is None or report.generation < live_generation):
        return f"it follows live settings of generation {report.generation}, not yet {live_generation}"
    return None


def _pod_problems(pod: str, report: Report, nodes: str | None) -> Iterable[Problem]:
    if report.summary is None:
        yield Problem(SIDECAR, SILENT, f"the sidecar does not answer: {report.sidecar_reason}", pod)
    tiers = (report.summary or {}).get("tiers", {})
    proved = (report.proof or {}).get("tiers", {})
    for tier, area in TIERS.items():
        state, result = tiers.get(tier, {}), proved.get(tier, "none")
        if state.get("state") == "off":
            yield Problem(area, OFF, f"tier {tier} is off: {state.get('reason') or 'no reason given'}", pod)
        elif result not in ("ok", "none") and is_of_now(report):
            cause = result.removeprefix("failed: ")
            yield Problem(area, FAILED, f"a block's round trip through tier {tier} failed: {cause}", pod)
        # One that was taken away is down, and nobody's problem.
        listed = {} if follows_others(report, nodes) else state.get("nodes", {})
        for node, seen in sorted(listed.items()):
            if seen["state"] == "down":
                yield Problem(
                    area, NODE_DOWN, f"memcached node {node} is down: {seen.get('reason') or 'no answer'}", pod
                )
