"""Objects as a cluster with controllers would show them, each as short as a test can say it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagoda_operator.compare import TEMPLATE_ANNOTATION
from pagoda_operator.evidence import Evidence
from pagoda_operator.proofs import Report
from pagoda_operator.workloads import Workload, read_workload

Json = dict[str, Any]
NEW, OLD = "new-template", "old-template"


def pod(
    name: str,
    part: str = "engine",
    *,
    template: str = NEW,
    ready: bool = True,
    containers: Mapping[str, Json] | None = None,
    scheduling: str | None = None,
    **metadata: Any,
) -> Json:
    """Return a pod; `containers` are states of containers by name, `scheduling` why no node takes it."""
    sidecars = {"sidecar": {"ready": True}} if part == "engine" else {}
    statuses = {part: {"ready": ready}, **sidecars, **(containers or {})}
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": scheduling}]
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "annotations": {TEMPLATE_ANNOTATION: template},
            "labels": {"pagoda-kv.io/pool": "chat", "pagoda-kv.io/part": part},
            **metadata,
        },
        "status": {
            "phase": "Pending" if scheduling else "Running",
            "conditions": conditions if scheduling else [],
            "initContainerStatuses": [{"name": "sidecar", **statuses["sidecar"]}]
            if sidecars and not scheduling
            else [],
            "containerStatuses": [
                {"name": name, **state} for name, state in statuses.items() if name != "sidecar" and not scheduling
            ],
        },
    }


def waiting(reason: str, message: str = "", /, **last: Any) -> Json:
    """Return a container that waits; `last` is how it ended before."""
    state = {"ready": False, "state": {"waiting": {"reason": reason, "message": message}}}
    return {**state, "lastState": {"terminated": last}} if last else state


NOW = 1_800_000_000.0


def controller(
    replicas: int,
    *,
    template: str = NEW,
    updated: int | None = None,
    seen: bool = True,
    made: int | None = None,
    conditions: Sequence[Mapping[str, str]] = (),
) -> Json:
    """Return a Deployment of generation 5, or a StatefulSet that has `made` so many pods."""
    return {
        "metadata": {"generation": 5},
        "spec": {
            "replicas": replicas,
            "template": {"metadata": {"annotations": {TEMPLATE_ANNOTATION: template}}},
            **({} if made is None else {"serviceName": "chat-memcached"}),
        },
        "status": {
            "observedGeneration": 5 if seen else 4,
            "replicas": replicas if made is None else made,
            "updatedReplicas": replicas if updated is None else updated,
            "conditions": list(conditions),
        },
    }


STUCK = {
    "type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded",
    "message": 'ReplicaSet "chat-engine-1" has timed out progressing.',
}  # fmt: skip


def workload(part: str, *pods: Json, desired: int | None = None, **changes: Any) -> Workload:
    """Return a part with these pods; without more said it wants just them."""
    wanted = len(pods) if desired is None else desired
    return read_workload(part, wanted, controller(wanted, **changes), pods, NOW)


@dataclass(frozen=True)
class Said:
    """What a pod says; all is well unless told otherwise."""

    ready: bool | None = True
    generation: int | None = 3
    proof: Mapping[str, Any] | None = None
    reason: str = ""
    summary: Mapping[str, Any] | None = None
    sidecar_reason: str = ""


def said(*, ram: str = "ok", disk: str = "none", pool: str = "none", **changes: Any) -> Said:
    """Return the words of a pod whose tiers' round trips came to these."""
    tiers = {"ram": ram, "disk": disk, "pool": pool}
    states = {
        tier: {"state": "none" if result == "none" else "on", "reason": "", **({"nodes": {}} if tier == "pool" else {})}
        for tier, result in tiers.items()
    }
    summary = {"namespace": "ab" * 32, "hit_ratio": None, "tiers": states, "state": "now", **changes.pop("summary", {})}
    return Said(**{"proof": {"generated": True, "tiers": tiers, "state": "now"}, "summary": summary, **changes})


def evidence(**changes: Any) -> Evidence:
    """Return what is known of a pool of two engines and a router, of generation 3, where all is well."""
    engines = changes.pop("engine", None) or workload("engine", pod("e-0"), pod("e-1"))
    reports: Mapping[str, Report] = {each.name: said() for each in engines.pods}
    values: Json = {
        "generation": 3,
        "engine": engines,
        "router": workload("router", pod("r-0", "router")),
        "memcached": None,
        "reports": reports,
        "live_generation": 3,
    }
    return Evidence(**{**values, **changes})
