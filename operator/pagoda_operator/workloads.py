"""How far a part of a pool is: its Deployment or StatefulSet and its pods, seen as one. Pure.

A controller's status may be older than its spec, and its pods older than both; each number here is what all of them
agree on, so nothing is told before it is true.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagoda_operator.compare import Manifest, template_mark
from pagoda_operator.pods import Pod, Problem, quote, read_pod

_NAMED_POD = re.compile(r'pods? "[^"]*"')  # of which each try makes up another name


@dataclass(frozen=True)
class Workload:
    """One part."""

    part: str
    desired: int
    pods: tuple[Pod, ...]
    """Those that count, of whatever template."""
    updated: int
    """How many are of the newest template, by their own mark and by the controller's count."""
    is_seen: bool
    """The controller has seen the newest spec."""
    template: str | None = None
    """The mark of the newest template; None: there is no controller."""
    stuck: str | None = None
    """Why its rollout has come to nothing, in the controller's words."""
    problems: tuple[Problem, ...] = ()

    @property
    def is_rolled_out(self) -> bool:
        """Whether exactly the wanted pods are there, all of the newest template."""
        return self.is_seen and self.stuck is None and self.updated == self.desired == len(self.pods)

    @property
    def num_ready(self) -> int:
        """How many pods answer."""
        return sum(pod.is_ready for pod in self.pods)

    @property
    def is_complete(self) -> bool:
        """Whether exactly the wanted pods are there and answer."""
        return self.is_rolled_out and self.num_ready == self.desired

    @property
    def newest(self) -> tuple[Pod, ...]:
        """The pods of the newest template."""
        return tuple(pod for pod in self.pods if self.template is not None and pod.template == self.template)

    def progress(self) -> str:
        """Say how far it is."""
        if not self.is_seen:
            return f"{self.part}: its controller has not seen the newest spec yet"
        what = f"{self.part}: {self.updated} of {self.desired} pods updated, {self.num_ready} ready"
        former = len(self.pods) - self.updated
        return f"{what}, {former} of former templates left" if former else what


def read_workload(
    part: str, desired: int | None, observed: Manifest | None, pods: Sequence[Manifest], now: float
) -> Workload:
    """Read a part from its controller's object as it is now (None: there is none) and from all pods of the part.

    `now` is in seconds since 1970. `desired` of None: as many as that object asks for, because nobody knows better.
    """
    spec, status = (observed or {}).get("spec") or {}, (observed or {}).get("status") or {}
    counting = tuple(pod for manifest in pods if (pod := read_pod(part, manifest, now)) is not None)
    is_seen = observed is not None and status.get("observedGeneration", 0) >= observed["metadata"]["generation"]
    template = template_mark(observed or {})
    marked = sum(template is not None and pod.template == template for pod in counting)
    stuck = _stuck(status) if is_seen else None
    return Workload(
        part=part,
        desired=spec.get("replicas", 0) if desired is None else desired,
        pods=counting,
        updated=min(marked, status.get("updatedReplicas", 0)) if is_seen else marked,
        is_seen=is_seen,
        template=template,
        stuck=stuck,
        problems=(
            *_own_problems(part, status, stuck),
            *(_unmade(part, spec, status) if is_seen else ()),
            *(problem for pod in counting for problem in pod.problems),
        ),
    )


def _stuck(status: Mapping[str, Any]) -> str | None:
    condition = _condition(status, "Progressing")
    if condition.get("status") == "False" and condition.get("reason") == "ProgressDeadlineExceeded":
        return quote(condition.get("message", ""))
    return None


def _own_problems(part: str, status: Mapping[str, Any], stuck: str | None) -> Sequence[Problem]:
    found = []
    if stuck is not None:
        advice = "mend what keeps its pods from getting ready, or put the former spec back"
        found.append(Problem(part, "RolloutStuck", f"{part}: {stuck}; {advice}"))
    failure = _condition(status, "ReplicaFailure")
    if failure.get("status") == "True":
        text = f"{part}: pods cannot be made: {quote(_NAMED_POD.sub('a pod', failure.get('message', '')))}"
        found.append(Problem(part, failure.get("reason") or "FailedCreate", text))
    return found


def _unmade(part: str, spec: Mapping[str, Any], status: Mapping[str, Any]) -> Sequence[Problem]:
    """Tell of a StatefulSet's pods that its controller has tried to make; unlike a Deployment's it has no condition."""
    wanted, made = spec.get("replicas", 1), status.get("replicas", 0)
    if "serviceName" not in spec or made >= wanted:
        return ()
    why = "kubectl describe statefulset tells why: a quota, Pod Security, an admission webhook"
    return [Problem(part, "FailedCreate", f"{part}: pods cannot be made, {made} of {wanted} are there; {why}")]


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((entry for entry in status.get("conditions") or () if entry.get("type") == kind), {})
