"""Every check: a pure function from a Snapshot to Findings."""

from collections.abc import Callable, Iterable

from pagoda_cli.doctor.checks.budgets import check_budgets
from pagoda_cli.doctor.checks.cache import check_cache
from pagoda_cli.doctor.checks.definition import check_definition
from pagoda_cli.doctor.checks.network import check_network
from pagoda_cli.doctor.checks.nodes import check_nodes
from pagoda_cli.doctor.checks.operators import check_operators
from pagoda_cli.doctor.checks.pods import check_pods
from pagoda_cli.doctor.checks.pools import check_pools
from pagoda_cli.doctor.checks.unread import check_unread
from pagoda_cli.doctor.finding import Finding
from pagoda_cli.doctor.snapshot import Snapshot

CHECKS: tuple[Callable[[Snapshot], Iterable[Finding]], ...] = (
    check_definition, check_operators, check_pools, check_nodes, check_pods, check_cache, check_network, check_budgets,
    check_unread,
)  # fmt: skip


def examine(snapshot: Snapshot) -> tuple[Finding, ...]:
    """Return all findings, the worst first, each once."""
    found = dict.fromkeys(finding for check in CHECKS for finding in check(snapshot))
    return tuple(sorted(found, key=lambda finding: (-finding.severity, finding.code, str(finding.place))))
