"""Which tokens the next step computes, and who has to give way. Pure: state in, plan out.

Rules:
- Decodes first, then prompts, each in order of arrival, under one budget of tokens. A prompt takes what budget and
  pages are left, so a large one advances whenever it is its turn.
- Only a request that could do nothing at all takes pages away, and only from later arrivals, latest first, a bounded
  number per step. So the earliest request always gets on in the end, and nothing is preempted in a circle.
- A request enters only when the pages it needs are there beside what the admitted ones still need for their prompts
  and a little for their output: admitting into a full device would preempt at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Of one step."""

    block_tokens: int
    max_batch_tokens: int
    max_preemptions: int


@dataclass(frozen=True)
class Candidate:
    """An admitted request. It wants the tokens [num_computed, num_tokens), at least one."""

    request_id: str
    num_computed: int
    num_tokens: int
    num_pages: int
    num_own_pages: int  # that would become available if it were preempted
    is_blocked: bool  # it loads or follows: no tokens now, but it can be preempted

    @property
    def num_wanted(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return self.num_tokens - self.num_computed


@dataclass(frozen=True)
class Chunk:
    """Compute the tokens [start, stop) of a request."""

    request_id: str
    start: int
    stop: int


@dataclass(frozen=True)
class StepPlan:
    """First preempt, then give each chunk the pages it needs, then compute."""

    chunks: tuple[Chunk, ...]
    preempted: tuple[str, ...]


@dataclass(frozen=True)
class Need:
    """The pages a request needs to get through its tokens so far."""

    num_new: int  # to be taken
    num_revived: int = 0  # cached now, but unavailable to others once it is admitted


def may_enter(need: Need, num_available: int, num_committed: int, is_alone: bool) -> bool:
    """Whether a request may be admitted beside those to whom `num_committed` pages are promised."""
    return need.num_new <= num_available - need.num_revived - (0 if is_alone else num_committed)


def plan(candidates: Sequence[Candidate], num_available: int, limits: Limits) -> StepPlan:
    """Plan a step for `candidates`, earliest arrival first, with `num_available` pages to take."""
    draft = _Draft(candidates, num_available, limits)
    for is_decode in (True, False):
        for index, candidate in enumerate(candidates):
            if (candidate.num_wanted == 1) is is_decode:
                draft.place(index)
    return draft.finish()


class _Draft:
    def __init__(self, candidates: Sequence[Candidate], num_available: int, limits: Limits) -> None:
        self._candidates = candidates
        self._limits = limits
        self._budget = limits.max_batch_tokens
        self._available = num_available
        self._chunks: dict[int, Chunk] = {}
        self._preempted: list[int] = []

    def place(self, index: int) -> None:
        candidate = self._candidates[index]
        if candidate.is_blocked or index in self._preempted or not self._budget:
            return
        while not (num_fitting := self._num_fitting(candidate)) and self._preempt_after(index):
            pass
        num_tokens = min(candidate.num_wanted, self._budget, num_fitting)
        if num_tokens:
            stop = candidate.num_computed + num_tokens
            self._chunks[index] = Chunk(candidate.request_id, candidate.num_computed, stop)
            self._budget -= num_tokens
            self._available -= self._num_new_pages(index)

    def finish(self) -> StepPlan:
        chunks = tuple(chunk for _, chunk in sorted(self._chunks.items()))
        return StepPlan(chunks, tuple(self._candidates[index].request_id for index in self._preempted))

    def _num_fitting(self, candidate: Candidate) -> int:
        return (candidate.num_pages + self._available) * self._limits.block_tokens - candidate.num_computed

    def _num_new_pages(self, index: int) -> int:
        needed = -(-self._chunks[index].stop // self._limits.block_tokens)
        return max(0, needed - self._candidates[index].num_pages)

    def _preempt_after(self, index: int) -> bool:
        """Take the latest arrival's place; one with no pages of its own only if there is none other.

        (Several requests can hold pages that no single one of them could give back.)
        """
        later = [other for other in range(len(self._candidates) - 1, index, -1) if other not in self._preempted]
        if not later or len(self._preempted) >= self._limits.max_preemptions:
            return False
        victim = next((other for other in later if self._yield_of(other)), later[0])
        self._available += self._yield_of(victim)
        if (chunk := self._chunks.pop(victim, None)) is not None:
            self._budget += chunk.stop - chunk.start
        self._preempted.append(victim)
        return True

    def _yield_of(self, index: int) -> int:
        return self._candidates[index].num_own_pages + (self._num_new_pages(index) if index in self._chunks else 0)
