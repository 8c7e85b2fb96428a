"""Disruption budgets: whether nodes of a pool's pods can be drained."""

from collections.abc import Iterable

from pagoda_cli.doctor.finding import Finding, place_of
from pagoda_cli.doctor.reach import selects
from pagoda_cli.doctor.snapshot import Manifest, Snapshot, labels_of, name_of, namespace_of


def check_budgets(snapshot: Snapshot) -> Iterable[Finding]:
    """Find pods that cannot be evicted."""
    if snapshot.budgets is None:
        return
    told: set[tuple[str, ...]] = set()
    for pod in snapshot.pods or ():
        budgets = [budget for budget in snapshot.budgets if _covers(budget, pod)]
        together = (namespace_of(pod), *sorted(map(name_of, budgets)))
        if len(budgets) > 1 and together not in told:
            told.add(together)
            yield Finding("PGD070", place_of(pod), f"selected by {', '.join(together[1:])}")
        for budget in budgets:
            if _is_tight(budget) and (key := (namespace_of(budget), name_of(budget))) not in told:
                told.add(key)
                status = budget["status"]
                seen = f"{status['currentHealthy']} of {status['expectedPods']} pods are healthy and 0 may go"
                yield Finding("PGD071", place_of(budget), seen)


def _covers(budget: Manifest, pod: Manifest) -> bool:
    """Tell whether a budget selects a pod; one without a selector selects none."""
    selector = budget["spec"].get("selector")
    return namespace_of(budget) == namespace_of(pod) and selector is not None and selects(selector, labels_of(pod))


def _is_tight(budget: Manifest) -> bool:
    status = budget.get("status") or {}
    healthy, expected = status.get("currentHealthy", 0), status.get("expectedPods", 0)
    return expected > 0 and healthy >= expected and status.get("disruptionsAllowed") == 0
