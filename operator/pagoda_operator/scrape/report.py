"""What is known of one pod, and which of it matters to whom. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pagoda_operator import proofs
from pagoda_operator.scrape.answers import Answers, EngineAnswer, Failure

HIT_RATIO_STEP = 0.05  # a smaller change is no news to a pool's status


@dataclass(frozen=True)
class PodReport:
    """The newest answers of one pod, of the engine's container that runs now."""

    ready: bool | None
    """What the engine says; None: it did not answer."""
    generation: int | None
    """Of the live settings that the engine follows."""
    proof: Mapping[str, Any] | None
    """As `EngineAnswer` has it."""
    reason: str
    """Why `ready` is not True, as one line."""
    summary: Mapping[str, Any] | None
    """The sidecar's `/v1/summary` without its hits; None: it did not answer, `sidecar_reason` says why."""
    at: float
    """When, on the fleet's clock."""
    sidecar_reason: str = ""
    hits: str = ""
    """The sidecar's hits as the annotation's value."""
    container_id: str | None = None
    """The engine's container, as it was known before the pod was asked."""

    def is_proven(self, generation: int, nodes: str | None = None) -> bool:
        """Whether nothing is left to wait for.

        That is: all tiers proven as they are now, under live settings of `generation` or later, with memcached's
        `nodes` (their mark; None: any).
        """
        if not self.ready or self.summary is None or self.proof is None or not self.proof["generated"]:
            return False
        if self.generation is not None and self.generation < generation:
            return False
        if not proofs.is_of_now(self) or proofs.follows_others(self, nodes):
            return False
        return all(result in ("ok", "none") for result in self.proof["tiers"].values())

    def is_news(self, before: "PodReport | None") -> bool:
        """Whether a pool's status may have to say something else than it did with `before`."""
        if before is None or _facts(self) != _facts(before):
            return True
        now, then = _hit_ratio(self), _hit_ratio(before)
        return (now is None) != (then is None) or abs((now or 0.0) - (then or 0.0)) >= HIT_RATIO_STEP


def make_report(answers: Answers, container_id: str | None, at: float) -> PodReport:
    """Turn what a look brought into a report."""
    engine, sidecar = answers.engine, answers.sidecar
    report = PodReport(None, None, None, engine.reason, None, at, container_id=container_id)
    if isinstance(engine, EngineAnswer):
        report = replace(report, ready=engine.ready, generation=engine.generation, proof=engine.proof)
    if isinstance(sidecar, Failure):
        return replace(report, sidecar_reason=sidecar.reason)
    return replace(report, summary=sidecar.summary, hits=sidecar.hits)


def _facts(report: PodReport) -> tuple[Any, ...]:
    summary = report.summary or {}
    kept = {key: value for key, value in summary.items() if key not in ("hit_ratio", "epochs")}
    return report.ready, report.generation, report.proof, report.reason, kept, report.sidecar_reason


def _hit_ratio(report: PodReport) -> float | None:
    ratio: float | None = (report.summary or {}).get("hit_ratio")
    return ratio
