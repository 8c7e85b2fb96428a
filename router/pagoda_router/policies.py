"""Which pod gets a request. Pure: facts in, decision out; chance is injected.

`CacheAware` weighs, in seconds, the computing that a pod's resident prefix saves against the waiting expected there.
Two things keep it from herding: work is counted from the moment it was decided, and a pod may not take work w if that
lifts it above max(F, 1.25 · (ΣW + w) / n), where F is what it holds without slowing others by more than 20 %. The least
loaded pod is always allowed, so there is always an answer. What every pod holds is worth nothing.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pagoda_router.pods import Pod
from pagoda_router.work import NOT_MEASURED, LoadShares, Match, common_match, predicted_seconds

BALANCE_FACTOR = 1.25
SLOWDOWN_WITHIN_FREE_WORK = 0.2
_TIE_SECONDS = 1e-6  # the book counts whole microseconds

# Reasons of decisions that went as they should …
PREFIX = "prefix"  # the pod holds more of the prefix than others
BALANCE = "balance"  # another pod holds more of it and had too much to do
LEAST_LOADED = "least_loaded"  # nobody holds more of it than the others
ROUND_ROBIN = "round_robin"
ONLY_POD = "only_pod"
RETRY = "retry"  # the second pod of a request whose first one gave no answer
# … and of those made by load alone because something was missing.
NO_HINTS = "no_hints"  # no hint stream is open (or several things are missing)
PARTIAL_HINTS = "partial_hints"  # nothing found, and some pods could not say


@dataclass(frozen=True)
class RequestFacts:
    """What a decision needs of a request."""

    num_prompt_tokens: int
    num_decode_tokens: int
    degraded: str | None = None
    """Why the request has no digests, as a reason; None if it has."""


@dataclass(frozen=True)
class PodView:
    """What a decision needs of a pod that is ready."""

    pod: Pod
    outstanding_seconds: float
    """Predicted work there: ours and, as far as reported, that of other routers."""
    free_work_seconds: float
    """The work it holds without slowing others by more than 20 %."""
    prefill_tokens_per_second: float
    match: Match
    degraded: str | None = None
    """Why its hints are not believed, as a reason; None if they are."""
    shares: LoadShares = NOT_MEASURED
    """What loading costs it, as shares of computing."""


@dataclass(frozen=True)
class Decision:
    """Where a request goes, why, with how many resident tokens, and the work it will be there."""

    pod: Pod
    reason: str
    tokens: int
    work_seconds: float


class Policy(Protocol):
    """Chooses among ready pods."""

    def choose(self, request: RequestFacts, pods: Sequence[PodView]) -> Decision:
        """Return a decision for one of `pods`, of which there is at least one; remembers at most its own turn."""
        ...


class RoundRobin:
    """Each pod in turn, in the order of names; pods may come and go."""

    def __init__(self) -> None:
        self._last = ""

    def choose(self, request: RequestFacts, pods: Sequence[PodView]) -> Decision:
        """Return the pod whose name follows the last one's."""
        ordered = sorted(pods, key=lambda view: view.pod.name)
        view = next((view for view in ordered if view.pod.name > self._last), ordered[0])
        self._last = view.pod.name
        return _decision(request, view, ONLY_POD if len(pods) == 1 else ROUND_ROBIN)


class LeastLoaded:
    """The pod with the least outstanding work; ties random."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def choose(self, request: RequestFacts, pods: Sequence[PodView]) -> Decision:
        """Return a pod with the least outstanding work."""
        least = min(view.outstanding_seconds for view in pods)
        view = self._chance.choice([view for view in pods if view.outstanding_seconds <= least + _TIE_SECONDS])
        return _decision(request, view, ONLY_POD if len(pods) == 1 else LEAST_LOADED)


class CacheAware:
    """The pod where the request is answered first, among those with room for it."""

    def __init__(self, chance: random.Random, block_tokens: int) -> None:
        self._chance = chance
        self._block_tokens = block_tokens

    def choose(self, request: RequestFacts, pods: Sequence[PodView]) -> Decision:
        """Return the allowed pod with the best score; ties random."""
        if len(pods) == 1:
            return _decision(request, pods[0], ONLY_POD)
        saved = self._saved_seconds(pods)
        allowed = _allowed(request, pods)
        scores = {index: saved[index] - _waiting_seconds(pods[index]) for index in allowed}
        best = max(scores.values())
        index = self._chance.choice([index for index in allowed if scores[index] >= best - _TIE_SECONDS])
        return _decision(request, pods[index], _reason(request, pods, saved, index))

    def _saved_seconds(self, pods: Sequence[PodView]) -> list[float]:
        """Return what each pod's match saves beyond what all save; less than a block counts as nothing.

        The common part is taken away as tokens, before speeds come in: equal matches must tie however the pods'
        measured speeds differ, or the noise of a measurement would herd all traffic onto one pod.
        """
        common = common_match([view.match for view in pods])
        extra = [view.shares.saved_tokens(view.match, common) for view in pods]
        worth = self._block_tokens / 2  # a block in RAM saves a little less than a block
        return [
            tokens / view.prefill_tokens_per_second if tokens > worth else 0.0
            for tokens, view in zip(extra, pods, strict=True)
        ]


def _allowed(request: RequestFacts, pods: Sequence[PodView]) -> list[int]:
    """Return the indexes of the pods that may take the request: within the balance bound, or least loaded."""
    total = sum(view.outstanding_seconds for view in pods)
    least = min(view.outstanding_seconds for view in pods)
    allowed = []
    for index, view in enumerate(pods):
        work = _work_seconds(request, view)
        bound = max(view.free_work_seconds, BALANCE_FACTOR * (total + work) / len(pods))
        is_least = view.outstanding_seconds <= least + _TIE_SECONDS
        if is_least or view.outstanding_seconds + work <= bound:
            allowed.append(index)
    return allowed


def _waiting_seconds(view: PodView) -> float:
    """Return the delay that the work already there means for one more request."""
    free = min(view.outstanding_seconds, view.free_work_seconds)
    return view.outstanding_seconds - free + SLOWDOWN_WITHIN_FREE_WORK * free


def _reason(request: RequestFacts, pods: Sequence[PodView], saved: Sequence[float], chosen: int) -> str:
    if saved[chosen] > 0:
        return PREFIX
    if max(saved) > 0:
        return BALANCE
    if request.degraded is not None:
        return request.degraded
    missing = [view.degraded for view in pods if view.degraded is not None]
    if not missing:
        return LEAST_LOADED
    if len(missing) < len(pods):
        return PARTIAL_HINTS
    return missing[0] if len(set(missing)) == 1 else NO_HINTS


def _work_seconds(request: RequestFacts, view: PodView) -> float:
    return predicted_seconds(
        request.num_prompt_tokens,
        request.num_decode_tokens,
        view.match,
        view.prefill_tokens_per_second,
        view.shares,
    )


def _decision(request: RequestFacts, view: PodView, reason: str) -> Decision:
    return Decision(view.pod, reason, view.match.tokens, _work_seconds(request, view))
