"""The status of a pool as one mapping. Pure: what it was and what is known now in, what it shall be out.

It is the same mapping for as long as nothing changes: times change with a condition's status alone, and the hit rate is
coarse and keeps its step until the mean has left it for good.
"""

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pagoda_operator import proofs
from pagoda_operator.compare import Manifest
from pagoda_operator.conditions import judge
from pagoda_operator.evidence import Condition, Evidence
from pagoda_operator.names import ENGINE, selector_text

HIT_RATE_STEP = 2.5  # percent


def make_status(pool_name: str, model: str | None, evidence: Evidence, before: Manifest, now: str) -> Manifest:
    """Return the whole status; `model` of None is not known and stays what it was."""
    engine = evidence.engine
    hit_rate = _hit_rate(evidence, before)
    status = {
        "observedGeneration": evidence.generation,
        "replicas": len(engine.pods),
        "desiredReplicas": engine.desired,
        "updatedReplicas": engine.updated,
        "readyReplicas": engine.num_ready,
        "selector": selector_text(pool_name, ENGINE),
        "conditions": _conditions(evidence.generation, judge(evidence), before.get("conditions") or (), now),
    }
    if (known := model or before.get("model")) is not None:
        status["model"] = known
    return status if hit_rate is None else {**status, "cache": {"hitRate": hit_rate}}


def timestamp(moment: datetime.datetime) -> str:
    """Return a moment as Kubernetes writes it."""
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _conditions(
    generation: int, conditions: Sequence[Condition], before: Sequence[Mapping[str, Any]], now: str
) -> list[Manifest]:
    former = {entry["type"]: entry for entry in before}
    return [
        {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "observedGeneration": generation,
            "lastTransitionTime": _since(condition, former.get(condition.type), now),
        }
        for condition in conditions
    ]


def _since(condition: Condition, former: Mapping[str, Any] | None, now: str) -> str:
    if former is not None and former["status"] == condition.status:
        return str(former["lastTransitionTime"])
    return now


def _hit_rate(evidence: Evidence, before: Manifest) -> str | None:
    """Return the mean in steps; None where no pod has a rate, which is not the same as zero."""
    former = (before.get("cache") or {}).get("hitRate")
    pods = evidence.engine.pods
    if pods and not any(pod.name in evidence.reports for pod in pods):
        return former
    ratio = proofs.hit_ratio(pods, evidence.reports)
    if ratio is None:
        return None
    if abs(100 * ratio - _percent(former)) < HIT_RATE_STEP:
        return former
    return f"{round(100 * ratio / HIT_RATE_STEP) * HIT_RATE_STEP:g}%"


def _percent(rate: str | None) -> float:
    """Return a rate as a number; none at all for what somebody else may have written there."""
    try:
        return math.nan if rate is None else float(rate.removesuffix("%"))
    except ValueError:
        return math.nan
