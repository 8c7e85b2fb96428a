"""What was not looked at, so that no finding is not taken for nothing wrong."""

from collections.abc import Iterable

from pagoda_cli.doctor.finding import CLUSTER, Finding
from pagoda_cli.doctor.snapshot import Snapshot


def check_unread(snapshot: Snapshot) -> Iterable[Finding]:
    """Tell which right was missing or which call failed; Secrets may well be none of one's business."""
    for unread in snapshot.unread:
        if unread.is_forbidden and unread.what.startswith("get secrets"):
            yield Finding("PGD024", CLUSTER, f"the right to {unread.what} is missing")
        elif unread.is_forbidden:
            yield Finding("PGD090", CLUSTER, f"the right to {unread.what} is missing: {unread.reason}")
        else:
            yield Finding("PGD091", CLUSTER, f"{unread.what}: {unread.reason}")
