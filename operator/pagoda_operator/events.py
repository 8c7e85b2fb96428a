"""Which events a change of status is worth: one for each condition that has become another. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagoda_operator.compare import Manifest

_BAD = {"Ready": "False", "Degraded": "True", "CacheReady": "False", "PoolReady": "False", "RoutingReady": "False"}


@dataclass(frozen=True)
class Transition:
    """A condition whose status has changed."""

    is_warning: bool
    reason: str
    action: str
    """Which condition became what, such as ReadyBecameFalse."""
    note: str


def transitions(before: Manifest, after: Manifest) -> tuple[Transition, ...]:
    """Return what has changed from one status to the next; what is told for the first time is no change."""
    former = {entry["type"]: entry["status"] for entry in before.get("conditions") or ()}
    changed = [entry for entry in after["conditions"] if former.get(entry["type"], entry["status"]) != entry["status"]]
    return tuple(_transition(entry) for entry in changed)


def _transition(condition: Mapping[str, Any]) -> Transition:
    kind, status = condition["type"], condition["status"]
    return Transition(_BAD.get(kind) == status, condition["reason"], f"{kind}Became{status}", condition["message"])
