"""From a request's digests to a pod and a reservation: the one place where facts, policy and book meet.

`place` has no await between looking and writing down, so no two requests decide on the same view.
"""

import contextlib
import statistics
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from pagoda_router.errors import NoPodError
from pagoda_router.fleet import Fleet, Member
from pagoda_router.instruments import Instruments
from pagoda_router.messages import Load
from pagoda_router.pods import Pod
from pagoda_router.policies import RETRY, Decision, PodView, Policy, RequestFacts
from pagoda_router.requests import Points
from pagoda_router.reservations import Book
from pagoda_router.work import (
    DEFAULT_FREE_WORK_SECONDS,
    DEFAULT_PREFILL_TOKENS_PER_SECOND,
    NO_MATCH,
    Match,
    load_shares,
    prompt_tokens,
)

OTHER_TEMPLATE = "template_digest"  # the pod's template changed between digesting and deciding


@dataclass(frozen=True)
class Routable:
    """What is known of a request before a pod is chosen."""

    num_bytes: int
    num_decode_tokens: int
    points_by_template: Mapping[bytes, Points]
    degraded: str | None
    """Why there are no points, as a reason."""


class Placer:
    """Decides where a request goes and keeps the book."""

    def __init__(self, fleet: Fleet, policy: Policy, book: Book, instruments: Instruments) -> None:
        self._fleet = fleet
        self._policy = policy
        self._book = book
        self._instruments = instruments

    def template_digests(self) -> frozenset[bytes]:
        """Return the template digests for which a request's points could find something now."""
        members = self._fleet.ready()
        heads = [member.hints.head for member in members if member.hints.degraded is None]
        return frozenset(head.template_digest for head in heads if head is not None)

    @contextlib.contextmanager
    def placed(self, request: Routable, tried: AbstractSet[Pod] = frozenset()) -> Iterator[Decision]:
        """Choose a pod that is not in `tried` and hold the request's work there while the context is open.

        Raises:
            NoPodError: no such pod is ready.
        """
        members = [member for member in self._fleet.ready() if member.pod not in tried]
        if not members:
            raise NoPodError(f"no pod is ready ({self._fleet.reasons()})")
        decision = self._decide(request, members)
        if tried:
            decision = replace(decision, reason=RETRY)
        self._instruments.decisions.add(reason=decision.reason)
        try:
            with self._book.reserved(decision.pod, decision.work_seconds):
                self._show(decision.pod)
                yield decision
        finally:
            self._show(decision.pod)
            member = self._fleet.get(decision.pod)
            if member is not None:
                member.hints.request_ended()

    def _decide(self, request: Routable, members: list[Member]) -> Decision:
        speeds = [load.prefill_tokens_per_second for member in members if (load := _load(member)) is not None]
        known = [speed for speed in speeds if speed > 0]
        usual_speed = statistics.median(known) if known else DEFAULT_PREFILL_TOKENS_PER_SECOND
        views = [self._view(request, member, usual_speed) for member in members]
        best = max((view.match for view in views), key=lambda match: match.tokens)
        facts = RequestFacts(prompt_tokens(request.num_bytes, best), request.num_decode_tokens, request.degraded)
        return self._policy.choose(facts, views)

    def _view(self, request: Routable, member: Member, usual_speed: float) -> PodView:
        match, degraded = _match(request, member)
        load = _load(member)
        speed = (load.prefill_tokens_per_second if load is not None else 0.0) or usual_speed
        ram, disk = (load.ram_seconds_per_token, load.disk_seconds_per_token) if load is not None else (0.0, 0.0)
        return PodView(
            pod=member.pod,
            outstanding_seconds=self._book.outstanding_seconds(member.pod) + member.hints.others_seconds(),
            free_work_seconds=(load.free_work_seconds if load is not None else 0.0) or DEFAULT_FREE_WORK_SECONDS,
            prefill_tokens_per_second=speed,
            match=match,
            degraded=degraded,
            shares=load_shares(ram, disk, speed),
        )

    def _show(self, pod: Pod) -> None:
        if self._fleet.get(pod) is not None:  # a series of a pod that is gone would stay for ever
            self._instruments.outstanding_seconds.set(self._book.outstanding_seconds(pod), pod=pod.name)


def _match(request: Routable, member: Member) -> tuple[Match, str | None]:
    hints = member.hints
    if hints.degraded is not None or hints.head is None or hints.table is None:
        return NO_MATCH, hints.degraded
    if request.degraded is not None:
        return NO_MATCH, None
    points = request.points_by_template.get(hints.head.template_digest)
    if points is None:
        return NO_MATCH, OTHER_TEMPLATE
    return hints.table.match(points), None


def _load(member: Member) -> Load | None:
    return None if member.hints.report is None else member.hints.report.load
