"""Write-through: every block that is computed is copied to the tiers below, before its request ends.

    engine thread            tier thread                        engine thread
    offer (hold) ──submit──► store (source: copy_out) ──event──► finish (release, note what lies below)

Rules: only published blocks are offered, so their content is complete and never changes; the page is held until the
tier thread is done; a block is offered after its parents, so that what lies below is reachable; what could not be
stored is offered again with the next block of its chain, but not at once.

A tier that is slow or hangs costs stores and never a step: the queue is bounded, what finds no place is dropped, and
what waits in it for long gives its pages back as soon as a request wants them. Only the batch that the tier thread is
at keeps its pages, a small share of the device, for its deadline at most.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pagoda_engine.core.prefix import Block
from pagoda_engine.core.residency import Residency
from pagoda_engine.core.settings import EngineSettings
from pagoda_engine.core.tiers import BlockRecord, StoreResult
from pagoda_engine.core.workers import Outage, TierAccess

_BATCH_BLOCKS = 32  # pages are released batch by batch
_BATCH_SHARE = 8  # of the device: a batch is no larger
_PATIENCE_SECONDS = 0.25  # before a store that waits gives way to a request that wants pages
_RETRY_SECONDS = 2.0


@dataclass(eq=False)
class StoreJob:
    """One call. `result` is written by the tier thread; None means that the call failed."""

    blocks: list[Block]
    records: list[BlockRecord]
    epoch: int  # of the attachment it was offered to
    offered_at: float
    is_begun: bool = False  # this and the next one under the storer's lock: never both
    is_cancelled: bool = False
    result: StoreResult | None = None


class Storer:
    """Starts and finishes stores. All but `_run` is for the engine's thread."""

    def __init__(
        self,
        access: TierAccess,
        residency: Residency,
        settings: EngineSettings,
        count: Callable[[str, int], None],
    ) -> None:
        self.jobs: dict[StoreJob, None] = {}  # oldest first
        self.num_blocks = 0  # queued or being stored
        self._epoch = 1
        self._access = access
        self._residency = residency
        self._settings = settings
        self._count = count
        self._outage = Outage("a store")
        self._begin_lock = threading.Lock()
        self._batch_blocks = max(1, min(_BATCH_BLOCKS, residency.pages.num_pages // _BATCH_SHARE))

    def attached(self) -> None:
        """Forget what lies below: another sidecar may be there. (Offering a block that is present costs little.)"""
        self._epoch += 1

    def note_loaded(self, block: Block, source: str) -> None:
        """A block that came out of RAM need not be stored there."""
        if source == "ram":
            block.stored_epoch = self._epoch

    def offer(self, blocks: Sequence[Block]) -> None:
        """Store `blocks`, consecutive in one chain, and those of their ancestors that are not below yet."""
        if not blocks:
            return
        chain = self._missing_ancestors(blocks[0]) + [block for block in blocks if self._is_missing(block)]
        if not self._access.client.attached:
            self._put_off(chain, "unavailable")
            return
        if not self._access.client.has_ram:  # as the pool was configured, so no failure; the client says it once
            self._put_off(chain, "ram_off")
            return
        room = self._settings.max_store_blocks - self.num_blocks
        self._put_off(chain[room:], "dropped")
        chain = chain[:room]
        for start in range(0, len(chain), self._batch_blocks):
            self._start(chain[start : start + self._batch_blocks])

    def offer_lost(self, blocks: Sequence[Block]) -> None:
        """Store blocks, consecutive in one chain, that are not below any more, whatever was known of them."""
        for block in blocks:
            block.stored_epoch = 0
        self.offer(blocks)

    def give_way(self) -> bool:
        """Pages are short: drop the stores that have waited too long; return whether there were any."""
        has_dropped = False
        for job in list(self.jobs):
            if job.offered_at + _PATIENCE_SECONDS > self._access.clock():
                break
            with self._begin_lock:
                job.is_cancelled = not job.is_begun
            if job.is_cancelled:
                self._release(job)
                self._put_off(job.blocks, "dropped")
                has_dropped = True
        return has_dropped

    @property
    def gives_way_at(self) -> float | None:
        """When all that waits will have waited long enough to give way; None if it has, or nothing waits."""
        newest = next(reversed(self.jobs), None)
        at = 0.0 if newest is None else newest.offered_at + _PATIENCE_SECONDS
        return at if at > self._access.clock() else None

    def finish(self, job: StoreJob) -> None:
        """Release the pages and note what is known to lie below."""
        self._release(job)
        if job.result is None:
            self._put_off(job.blocks, "unavailable")
            return
        for outcome in ("stored", "present", "refused"):
            self._count(outcome, getattr(job.result, outcome))
        if job.result.refused:  # by count only: which ones, nobody says
            self._put_off(job.blocks, None)
        else:
            for block in job.blocks:
                block.stored_epoch = job.epoch

    def _release(self, job: StoreJob) -> None:
        del self.jobs[job]
        self.num_blocks -= len(job.blocks)
        for block in reversed(job.blocks):
            block.is_storing = False
            self._residency.table.release(block.page, is_use=False)

    def _missing_ancestors(self, block: Block) -> list[Block]:
        chain = []
        parent = block.parent
        while parent is not None and self._is_missing(parent):
            chain.append(parent)
            parent = parent.parent
        return chain[::-1]

    def _is_missing(self, block: Block) -> bool:
        return block.stored_epoch != self._epoch and not block.is_storing and block.store_after <= self._access.clock()

    def _put_off(self, blocks: Sequence[Block], outcome: str | None) -> None:
        for block in blocks:
            block.store_after = self._access.clock() + _RETRY_SECONDS
        if blocks and outcome is not None:
            self._count(outcome, len(blocks))

    def _start(self, blocks: list[Block]) -> None:
        records = []
        for block in blocks:
            block.is_storing = True
            self._residency.table.hold(block.page)
            parent = block.root if block.parent is None else block.parent.address
            records.append(BlockRecord(block.address, parent, block.index, len(block.tokens), block.tenant_tag))
        job = StoreJob(blocks, records, self._epoch, self._access.clock())
        self.jobs[job] = None
        self.num_blocks += len(blocks)
        self._access.workers.submit(lambda: self._run(job))

    def _run(self, job: StoreJob) -> None:
        """The tier thread's part; whatever happens, the engine hears of the end."""

        with self._begin_lock:
            job.is_begun = not job.is_cancelled
        if not job.is_begun:
            return

        def source(position: int, slot: memoryview) -> None:
            self._access.runner.copy_out(job.blocks[position].page, slot)

        try:
            job.result = self._access.client.store(job.records, source, self._settings.store_seconds)
            self._outage.worked()
        except Exception as error:  # noqa: BLE001 - whatever a tier does, it is never more than a block not there
            self._outage.failed(error)
        finally:
            self._access.post(job)
