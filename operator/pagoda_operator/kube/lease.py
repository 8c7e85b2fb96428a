"""What a Lease says and what a candidate writes into it. Pure: clocks and calls are elsewhere.

A candidate never compares its clock with the holder's: it notes when, on its own clock, it saw the record change last,
and the Lease is free when nothing changed for as long as the holder promised to renew it. A Lease that somebody deleted
ends no promise: its holder may not know yet, and has made it anew or ended within the time that it may still write.
"""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagoda_operator.kube.kinds import LEASE, Manifest, micro_time

_INT32 = 2**31
MAX_PROMISE_SECONDS = 60.0  # nobody waits longer for a holder, whatever somebody wrote into the Lease


@dataclass(frozen=True)
class Terms:
    """The times of the Lease, in seconds.

    A call that is not answered in time must leave room for the next try, and a holder that cannot renew must have ended
    before anybody takes the Lease for free.
    """

    lease: float = 12.0
    """How long a holder that shows no life is waited for."""
    renew: float = 8.0
    """How long after its last renewal a holder may write."""
    retry: float = 2.5
    """From the beginning of one try to that of the next."""
    call: float = 2.0
    """The deadline of one call."""

    def __post_init__(self) -> None:
        assert 0 < self.call < self.retry < self.renew < self.lease, "these times let two lead"


class Sight:
    """What one candidate has seen of the Lease, and since when it is so."""

    def __init__(self) -> None:
        self._record: tuple[object, ...] | None = None
        self._since = 0.0
        self._promised: float | None = None
        self._has_been_there = False
        self.holder = ""

    def see(self, lease: Mapping[str, Any], now: float) -> None:
        """Take what was read at `now`."""
        spec = lease.get("spec") or {}
        self._note((spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions")), now)
        self._promised = spec.get("leaseDurationSeconds")
        self._has_been_there = True
        self.holder = str(spec.get("holderIdentity") or "")

    def see_none(self, now: float) -> None:
        """Take that there was no Lease at `now`; whoever held it last may still lead."""
        self._note((), now)

    def free_in(self, terms: Terms, now: float) -> float:
        """Return the seconds until the Lease, or its absence, that was just seen counts as free; 0: it is."""
        if self.holder:
            promised = min(float(self._promised or terms.lease), MAX_PROMISE_SECONDS)
        else:
            promised = 0.0 if self._has_been_there else terms.renew  # deleted a moment ago, for all one can see
        return max(0.0, self._since + promised - now)

    def _note(self, record: tuple[object, ...], now: float) -> None:
        if record != self._record:
            self._record, self._since = record, now


def claim(
    lease: Mapping[str, Any] | None, namespace: str, name: str, identity: str, terms: Terms, moment: datetime.datetime
) -> Manifest:
    """Return the Lease as `identity` holds it from `moment` on, in the place of what was read (None: there is none)."""
    time = micro_time(moment)
    if lease is None:
        made = {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": {"namespace": namespace, "name": name}}
        return made | {"spec": _spec(identity, terms, time, time, 0)}
    spec = lease.get("spec") or {}
    if spec.get("holderIdentity") == identity:
        transitions = spec.get("leaseTransitions") or 0
        return dict(lease) | {"spec": _spec(identity, terms, spec.get("acquireTime") or time, time, transitions)}
    transitions = ((spec.get("leaseTransitions") or 0) + 1) % _INT32  # one more would be refused, and nobody lead
    return dict(lease) | {"spec": _spec(identity, terms, time, time, transitions)}


def give_up(lease: Mapping[str, Any], moment: datetime.datetime) -> Manifest:
    """Return the Lease as it is free for anybody at once."""
    spec = dict(lease["spec"]) | {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": micro_time(moment)}
    return dict(lease) | {"spec": spec}


def _spec(identity: str, terms: Terms, acquired: str, renewed: str, transitions: int) -> Manifest:
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": round(terms.lease),
        "acquireTime": acquired,
        "renewTime": renewed,
        "leaseTransitions": transitions,
    }
