"""The operator: there, running, leading, with its rights, and one for each pool."""

import itertools
from collections.abc import Iterable

from pagoda_cli.doctor.finding import CLUSTER, Finding, Place, place_of
from pagoda_cli.doctor.installation import account_of, lease_of, served_namespaces, serves
from pagoda_cli.doctor.snapshot import Manifest, Manifests, Snapshot, age_seconds, condition, name_of, namespace_of

_TAKEOVER_SECONDS = 20.0
_MAX_RIGHTS = 8


def check_operators(snapshot: Snapshot) -> Iterable[Finding]:
    """Find what keeps operators from looking after pools."""
    if snapshot.operators is None:
        return
    if not snapshot.operators:
        yield Finding("PGD010", CLUSTER, "no namespace has a Deployment of an operator")
        return
    for operator in snapshot.operators:
        yield from _running(operator)
        yield from _leading(snapshot, operator)
        yield from _rights(snapshot, operator)
    yield from _serving(snapshot, snapshot.operators)


def _running(operator: Manifest) -> Iterable[Finding]:
    wanted = operator["spec"].get("replicas", 1)
    if not (operator.get("status") or {}).get("availableReplicas"):
        message = condition(operator, "ReplicaFailure").get("message") or condition(operator, "Available").get(
            "message"
        )
        yield Finding("PGD011", place_of(operator), f"0 of {wanted} pods are available: {message or 'none is wanted'}")


def _leading(snapshot: Snapshot, operator: Manifest) -> Iterable[Finding]:
    namespace, name = lease_of(operator)
    if (namespace, name) not in snapshot.leases:
        return
    lease, place = snapshot.leases[namespace, name], Place("Lease", name, namespace)
    if lease is None:
        yield Finding("PGD012", place, "there is no such Lease")
        return
    spec = lease.get("spec") or {}
    late = age_seconds(snapshot, spec.get("renewTime"))
    if not spec.get("holderIdentity"):
        yield Finding("PGD012", place, "nobody holds it")
    elif late > spec.get("leaseDurationSeconds", 0) + _TAKEOVER_SECONDS:
        yield Finding("PGD012", place, f"{spec['holderIdentity']} holds it and last renewed it {late:.0f} s ago")


def _rights(snapshot: Snapshot, operator: Manifest) -> Iterable[Finding]:
    account = account_of(operator)
    missing = [review.right for review in snapshot.reviews if review.account == account and not review.is_allowed]
    if missing:
        rest = f" and {len(missing) - _MAX_RIGHTS} more" if len(missing) > _MAX_RIGHTS else ""
        seen = f"it may not {', '.join(missing[:_MAX_RIGHTS])}{rest}"
        namespace, _, name = account.partition("/")
        yield Finding("PGD013", Place("ServiceAccount", name, namespace), seen)


def _serving(snapshot: Snapshot, operators: Manifests) -> Iterable[Finding]:
    served = [(operator, served_namespaces(operator)) for operator in operators]
    for pool in snapshot.pools:
        if not any(serves(operator, namespace_of(pool)) for operator in operators):
            yield Finding("PGD014", place_of(pool), f"no operator serves namespace {namespace_of(pool)}")
    for (one, some), (other, more) in itertools.combinations(served, 2):
        both = some & more if some and more else some | more
        if both or not (some or more):
            where = f"namespaces {', '.join(sorted(both))}" if both else "all namespaces"
            yield Finding("PGD015", place_of(one), f"{namespace_of(other)}/{name_of(other)} serves {where} too")
