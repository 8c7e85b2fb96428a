"""Pushes: blocks on their way from RAM to the pool.

    seen twice (a load hit it, a second request ended or hit at it) ──► queue, bounded ──► probe, verify, store
    hand-over or the end of an engine ──► everything, hottest sessions first ──► probe, verify, store

What the pool is known to have is not offered again, until that knowledge is old (`KNOWN_SECONDS`, then one probe tells)
or worth nothing: nodes evict, are replaced, and come back empty.

A slot being sent is referenced, and hashed by the pool just before: a damaged block must not spread. Nobody waits for
a push. A full queue loses offers, which come again with the next use, and what is late is left; both are counted.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pagoda_protocol.records import HANDED_OVER, RecordError
from pagoda_runtime.deadlines import Deadline
from pagoda_runtime.logs import fields
from pagoda_sidecar.arena.slots.block import Block
from pagoda_sidecar.arena.tier import RamTier
from pagoda_sidecar.pool import STORED
from pagoda_sidecar.pool_tier import PoolTier
from pagoda_sidecar.verifier import Verifier

_log = logging.getLogger(__name__)

NUM_SENDERS = 2  # one sends while the other's answers are awaited
SEND_BATCH = 8  # each costs the control loop one call, whatever is in it
MAX_QUEUED = 4096
MAX_EARLY = 4096
BATCH = 64
PROBE_SECONDS = 10.0
SEND_SECONDS = 60.0
DRAIN_SECONDS = 600.0
# So long a block that the pool had is not asked for again, however often it is used
KNOWN_SECONDS = 30.0
# The engine's own request ends at a block once; the second time somebody came back
TOUCHES_TO_PUSH = 2


@dataclass
class PushResult:
    """What became of a push of everything."""

    num_blocks: int = 0
    num_bytes: int = 0
    num_left: int = 0


class Pusher:
    """See the head of this file. `cancel` must have returned before a tier's arena is let go of."""

    def __init__(self, pool: PoolTier, verifier: Verifier, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._verifier = verifier
        self._clock = clock
        self._queue: dict[Block, None] = {}  # ordered, and each block once
        self._early_touches: dict[bytes, int] = {}  # of addresses that are not here (yet), oldest first
        self._sending: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None

    def loaded(self, tier: RamTier, block: Block) -> None:
        """A load hit `block` and with it its chain."""
        for link in _front_first(tier, block):
            self._offer(tier, link)

    def touched(self, tier: RamTier, address: bytes) -> None:
        """A request hit or ended at `address`."""
        block = tier.index.sealed(address)
        if block is None:  # used before its copy has arrived: the use counts when it does
            self._early_touches[address] = self._early_touches.pop(address, 0) + 1
            if len(self._early_touches) > MAX_EARLY:
                del self._early_touches[next(iter(self._early_touches))]
            return
        for link in _front_first(tier, block):
            link.num_touches += 1
            if link.num_touches >= TOUCHES_TO_PUSH:
                self._offer(tier, link)

    def sealed(self, tier: RamTier, block: Block) -> None:
        """A block has become visible; uses reported before that count now."""
        for _ in range(self._early_touches.pop(block.address, 0)):
            self.touched(tier, block.address)

    def is_in_pool(self, block: Block) -> None:
        """The pool has just given us `block`."""
        block.pool_mark = self._mark()

    def drain(self, tier: RamTier) -> None:
        """Push everything in the background: an engine is gone without a hand-over."""
        if self._draining is None and self._pool.enabled():
            self._draining = asyncio.create_task(self._drain(tier))
            self._draining.add_done_callback(self._drained)

    async def push_all(self, tier: RamTier, budget_bytes: int, budget_seconds: float) -> PushResult:
        """Push what the pool lacks within the budgets; what it has already costs a probe and counts as nothing.

        The records say that they were handed over: whoever loads them keeps them first (`RamTier.land`).
        """
        result, deadline = PushResult(), Deadline(budget_seconds)
        blocks = list(tier.by_heat())
        for start in range(0, len(blocks), BATCH):
            lacking = await self._lacking(blocks[start : start + BATCH], deadline)
            size = tier.arena.geometry.payload_bytes
            affordable = max(0, budget_bytes - result.num_bytes) // size
            if deadline.expired or not self._pool.enabled():
                result.num_left += len(blocks) - start
                break
            num_sent = await self._send_all(tier, lacking[:affordable], deadline, HANDED_OVER)
            result.num_blocks += num_sent
            result.num_bytes += num_sent * size
            result.num_left += len(lacking) - num_sent
        return result

    async def finish(self, timeout_seconds: float) -> None:
        """Give a push under way some time to end, then end it."""
        tasks = [task for task in (self._sending, self._draining) if task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_seconds)
        await self.cancel()

    async def cancel(self) -> None:
        """Stop; when this returns no slot is read any more."""
        self._queue.clear()
        tasks = [task for task in (self._sending, self._draining) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _offer(self, tier: RamTier, block: Block) -> None:
        if not block.is_sealed or not self._pool.enabled() or block in self._queue or self._has(block):
            return
        if len(self._queue) >= MAX_QUEUED:
            self._verifier.counters.pushes_dropped.add(1, reason="queue_full")
            return
        self._queue[block] = None
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_queue(tier))
            self._sending.add_done_callback(self._sent)

    def _mark(self) -> tuple[int, float]:
        """What to note of a block that the pool has as of now."""
        return self._pool.num_upheavals, self._clock()

    def _has(self, block: Block) -> bool:
        """Whether the pool is known to have `block`."""
        if block.pool_mark is None:
            return False
        num_upheavals, since = block.pool_mark
        return num_upheavals == self._pool.num_upheavals and self._clock() - since < KNOWN_SECONDS

    async def _send_queue(self, tier: RamTier) -> None:
        while self._queue:
            batch = list(itertools.islice(self._queue, BATCH))
            for block in batch:
                del self._queue[block]
            lacking = await self._lacking(batch, Deadline(PROBE_SECONDS))
            await self._send_all(tier, lacking, Deadline(SEND_SECONDS))

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending = None
        _log_failure(task)

    async def _drain(self, tier: RamTier) -> None:
        result = await self.push_all(tier, 2**63, DRAIN_SECONDS)
        _log.info(
            "engine gone, blocks pushed %s",
            fields(num_blocks=result.num_blocks, num_bytes=result.num_bytes, num_left=result.num_left),
        )

    def _drained(self, task: asyncio.Task[None]) -> None:
        self._draining = None
        _log_failure(task)

    async def _lacking(self, blocks: Sequence[Block], deadline: Deadline) -> list[Block]:
        """Return the blocks the pool does not have."""
        blocks = [block for block in blocks if block.is_named and block.is_sealed]
        mark = self._mark()
        try:
            async with asyncio.timeout(deadline.remaining):
                found = await self._pool.probe([block.address for block in blocks])
        except TimeoutError:
            return blocks
        for block, is_there in zip(blocks, found, strict=True):
            block.pool_mark = mark if is_there else None
        return [block for block, is_there in zip(blocks, found, strict=True) if not is_there]

    async def _send_all(self, tier: RamTier, blocks: Sequence[Block], deadline: Deadline, flags: int = 0) -> int:
        """Send `blocks` a few at a time; return how many were acknowledged."""
        waiting = [blocks[start : start + SEND_BATCH] for start in range(0, len(blocks), SEND_BATCH)][::-1]
        num_sent = 0

        async def send() -> None:
            nonlocal num_sent
            while waiting and not deadline.expired:
                acknowledged = await self._send(tier, waiting.pop(), deadline, flags)
                num_sent += acknowledged  # not in one statement: others count while this one waits

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(NUM_SENDERS, len(waiting))):
                tasks.create_task(send())
        if waiting:
            self._verifier.counters.pushes_dropped.add(sum(map(len, waiting)), reason="late")
        return num_sent

    async def _send(self, tier: RamTier, blocks: Sequence[Block], deadline: Deadline, flags: int) -> int:
        """Send `blocks`; drop what is found to be damaged; return how many were acknowledged."""
        blocks = [block for block in blocks if block.is_named and _is_sound(tier, block)]
        for block in blocks:
            tier.index.reference(block)
        mark = self._mark()
        try:
            async with asyncio.timeout(deadline.remaining):
                headers = [replace(tier.header(block), flags=flags) for block in blocks]
                payloads = [tier.arena.payload(block.slot) for block in blocks]
                outcomes = await self._pool.store_all(list(zip(headers, payloads, strict=True)))
        except TimeoutError:
            self._verifier.counters.pushes_dropped.add(len(blocks), reason="late")
            return 0
        finally:
            for block in blocks:
                tier.index.unreference(block)
        for block, outcome in zip(blocks, outcomes, strict=True):
            block.pool_mark = mark if outcome in STORED else None
        damaged = [block for block, outcome in zip(blocks, outcomes, strict=True) if outcome == "corrupt"]
        if damaged:
            await self._verifier.check(tier, damaged)
        return sum(outcome in STORED for outcome in outcomes)


def _is_sound(tier: RamTier, block: Block) -> bool:
    """Whether the record's header can be read; the verifier finds the others."""
    try:
        tier.header(block)
    except RecordError:
        return False
    return True


def _front_first(tier: RamTier, block: Block) -> list[Block]:
    return list(reversed(list(tier.index.chain(block))))


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("a push failed", exc_info=task.exception())
