"""What each tenant's blocks hold, and what they may hold at most.

A tenant is known by the tag in its records. Every slot that holds or awaits one of its blocks counts, also while the
block is written and after it has lost its name. A tag without a cap is bounded by the tier alone.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from pagoda_sidecar.arena.slots.block import Block
from pagoda_sidecar.arena.slots.queue import Rank, RunQueue
from pagoda_sidecar.arena.slots.run import ChainRun


class TenantShares:
    """See the head of this file."""

    def __init__(self, rank: Callable[[ChainRun], Rank], is_evictable: Callable[[ChainRun], bool]) -> None:
        self.caps: Mapping[int, int] = {}
        self.num_held: Counter[int] = Counter()
        self._rank = rank
        self._is_evictable = is_evictable
        self._queues: dict[int, RunQueue] = {}

    def set_caps(self, caps: Mapping[int, int], runs: Iterable[ChainRun]) -> None:
        """Cap these tags and no others, in slots; `runs` are all there are."""
        self.caps = dict(caps)
        self._queues = {tag: RunQueue(self._rank, self._of(tag)) for tag in caps}
        for run in runs:
            self.offer(run)

    def charge(self, tag: int, num_slots: int) -> None:
        """Add to what `tag` holds, or take away."""
        self.num_held[tag] += num_slots
        if not self.num_held[tag]:
            del self.num_held[tag]

    def is_over(self, tag: int, num_more: int) -> bool:
        """Whether `tag` would hold more than it may with `num_more` slots more."""
        cap = self.caps.get(tag)
        return cap is not None and self.num_held[tag] + num_more > cap

    def offer(self, run: ChainRun) -> None:
        """Put an evictable run where its tenant finds it."""
        queue = self._queues.get(run.tail.tenant_tag)
        if queue is not None and self._is_evictable(run) and run not in queue:
            queue.push(run)

    def discard(self, run: ChainRun) -> None:
        """Forget the place of `run`: its rank may have fallen."""
        for queue in self._queues.values():
            queue.discard(run)

    def first(self, tag: int) -> ChainRun | None:
        """Return the run of a capped tenant that goes first."""
        return self._queues[tag].first()

    def ranks_fell(self) -> None:
        """All ranks may be lower."""
        for queue in self._queues.values():
            queue.ranks_fell()

    def check_integrity(self, blocks: Iterable[Block]) -> None:
        """Assert that each slot of `blocks` is charged once, and that what each tenant could evict can be found."""
        blocks = list(blocks)
        assert self.num_held == Counter(block.tenant_tag for block in blocks), "a tenant's account is wrong"
        for run in {block.run for block in blocks if block.run is not None}:
            queue = self._queues.get(run.tail.tenant_tag)
            assert queue is None or not self._is_evictable(run) or run in queue, "a tenant cannot find its own block"

    def _of(self, tag: int) -> Callable[[ChainRun], bool]:
        return lambda run: run.tail.tenant_tag == tag and self._is_evictable(run)
