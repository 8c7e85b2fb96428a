"""What an engine imports: the tiers below the device, as blocking calls that never cost more than their deadline.

    lookup ──► load: grant ─► per block in order: compare generation ─► sink copies ─► hash, compare again ─► settle
               store: reserve ─► per block: source fills the slot ─► hash ─► commit (visible from now on)

A tier that is off, hung or gone is `TierUnavailable`; a block that is damaged or was reused is a miss that ends a load
early. No other exception comes from the tiers. What `sink` or `source` raise passes through, with slots given back.

Rules: stands on the protocol, the runtime, grpcio and xxhash alone.
"""

import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import xxhash

from pagoda_protocol.tier import LOCK_NAME
from pagoda_protocol.tier import tier_pb2 as pb
from pagoda_runtime.deadlines import Deadline
from pagoda_runtime.logs import fields
from pagoda_sidecar.arena.engine_lock import EngineLock, LockHeldError, is_free
from pagoda_sidecar.client_arena import MappedArena, NoArenaError
from pagoda_sidecar.client_connection import TIER_NAMES, Connection, EventStream
from pagoda_sidecar.client_load import Copying, LoadRun, NoGrantError
from pagoda_sidecar.client_values import (
    BlockRecord,
    DigestRow,
    EngineIdentity,
    LoadReport,
    LoadResult,
    Part,
    StoreResult,
    TierUnavailable,
)

__all__ = [
    "BlockRecord",
    "DigestRow",
    "EngineIdentity",
    "LoadReport",
    "LoadResult",
    "LockHeldError",
    "Part",
    "StoreResult",
    "TierClient",
    "TierUnavailable",
    "is_free",
]


_log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.5
# Beyond the budget: the sidecar looks at it between blocks
HAND_OVER_SLACK_SECONDS = 5.0
# Of the time a call may take, for what lies below the sidecar: its answer needs some, so that it is not in doubt itself
PLACE_SHARE = 0.7
_TIERS: dict[str, pb.TierName.ValueType] = {
    "ram": pb.TIER_NAME_RAM,
    "disk": pb.TIER_NAME_DISK,
    "pool": pb.TIER_NAME_POOL,
}


class TierClient:
    """An engine's side of the tier contract. Thread safe; every call blocks for its timeout at most.

    Takes `engine.lock` first, and attaches in a thread of its own, for ever.

    Raises:
        LockHeldError: another engine uses this volume.
        OSError: the volume cannot be used.
    """

    def __init__(self, volume: Path, identity: EngineIdentity) -> None:
        # Called in the attach thread after each successful attach
        self.on_attach: Callable[[], None] | None = None
        # (tier, reason) of each record that failed verification on its way into the device
        self.on_integrity_failure: Callable[[str, str], None] | None = None
        # Called in the attach thread when the sidecar says something new of its tiers, comes or goes
        self.on_change: Callable[[], None] | None = None
        self.num_integrity_failures = 0
        self._identity = identity
        self._lock = EngineLock(volume / LOCK_NAME)
        self._sequence_lock = threading.Lock()
        self._sequence = 0
        self._connection = Connection(volume, identity, self._attached, self._changed)

    @property
    def attached(self) -> bool:
        """Whether a sidecar is attached and answering."""
        return self._connection.is_up

    @property
    def has_ram(self) -> bool:
        """Whether there is a RAM tier now: without one nothing is stored below or loaded from there."""
        return self._connection.arena.is_mapped

    @property
    def tiers(self) -> tuple[str, ...] | None:
        """The configured tiers, on or off, as the sidecar said last; None: it has never said."""
        return self._connection.tiers

    @property
    def state(self) -> str:
        """The mark of all that the sidecar has said of its tiers; empty while none is attached."""
        return self._connection.state

    @property
    def off_reason(self) -> str:
        """Why the RAM tier is off, or all tiers; empty while it can be used."""
        return self._connection.off_reason

    @property
    def pool_off_reason(self) -> str:
        """Why the pool is off, as the sidecar said last; empty while blocks go there and come from there."""
        return self._connection.pool_off_reason

    @property
    def disk_off_reason(self) -> str:
        """Why the disk tier is off, as the sidecar said last; empty while blocks go there and come from there."""
        return self._connection.disk_off_reason

    def lookup(self, addresses: Sequence[bytes], timeout_seconds: float, *, is_proof: bool = False) -> list[Part]:
        """Return the runs present below, contiguous from position 0; empty is a miss. A proof's is counted nowhere.

        Raises:
            TierUnavailable: nothing could be asked.
        """
        if not self.has_ram and self.attached:
            return []  # nothing below could be loaded
        with self._connection.call(timeout_seconds) as (stub, attachment):
            request = pb.LookupRequest(attachment=attachment, addresses=addresses, is_proof=is_proof)
            reply = stub.Lookup(request, timeout=timeout_seconds)
        return [Part(TIER_NAMES.get(part.tier, "pool"), part.first, part.count, part.seconds) for part in reply.parts]

    def load(
        self,
        root: bytes,
        addresses: Sequence[bytes],
        first: int,
        stop: int,
        sink: Callable[[int, memoryview], None],
        timeout_seconds: float,
        cancelled: Callable[[], bool],
        *,
        back_first: bool = False,
        arrived: Callable[[int, str], None] | None = None,
        floor: Callable[[], int] | None = None,
        is_proof: bool = False,
    ) -> LoadResult:
        """Copy the blocks `addresses[first:stop]` out of the arena through `sink(position, payload)`, in order.

        `addresses` is the whole chain and `root` what its first address follows on. The view is valid during the call
        of `sink` only and must not be written. A position counts only when the result has it, or `arrived(position,
        source)` was called for it: the last one `sink` saw may have failed verification afterwards.

        Back first the order is from `stop - 1` (or where a short grant ends) downwards, and `floor()` gives the lowest
        position still wanted: the load is complete when all from there on has arrived. Both are called in this thread.

        A proof's load is no use of the blocks.

        Raises:
            TierUnavailable: nothing could be asked, or no answer came in time.
        """
        request_id = secrets.token_hex(8)
        deadline = Deadline(timeout_seconds)
        run: LoadRun | None = None
        try:
            with (
                self._connection.call(timeout_seconds) as (stub, attachment),
                self._connection.arena.borrowed() as arena,
            ):
                request = pb.LoadRequest(
                    attachment=attachment,
                    request_id=request_id,
                    addresses=addresses,
                    root=root,
                    first=first,
                    stop=stop,
                    order=pb.ORDER_BACK_FIRST if back_first else pb.ORDER_FRONT_FIRST,
                    is_proof=is_proof,
                )
                copying = Copying(arena, self._identity.namespace, request, sink, deadline, cancelled)
                if arrived is not None:
                    copying = replace(copying, arrived=arrived)
                if back_first:
                    copying = replace(copying, floor=floor)
                run = LoadRun(copying)
                stream: EventStream[pb.LoadEvent] = EventStream(stub.Load(request))
                try:
                    return run.follow(stream)
                except NoGrantError as error:
                    raise self._connection.late(str(error), attachment, timeout_seconds) from error
                finally:
                    stream.cancel()
        except NoArenaError as error:
            raise TierUnavailable("ram_off", self.off_reason) from error
        finally:
            if run is not None:
                self._count_failures(run)
                self._connection.settle(request_id, {slot for slot, _, _ in run.suspects}, SETTLE_SECONDS)

    def store(
        self, blocks: Sequence[BlockRecord], source: Callable[[int, memoryview], None], timeout_seconds: float
    ) -> StoreResult:
        """Store `blocks`; `source(i, view)` must have filled the payload of `blocks[i]` when it returns.

        Never waits for room. A block is visible once this returned and counted it as stored.

        Raises:
            TierUnavailable: nothing is known to be stored (the answer to the commit may have been lost).
        """
        request_id = secrets.token_hex(8)
        deadline = Deadline(timeout_seconds)
        is_open = True  # whether slots may still be ours
        try:
            with (
                self._connection.call(timeout_seconds) as (stub, attachment),
                self._connection.arena.borrowed() as arena,
            ):
                request = pb.ReserveRequest(
                    attachment=attachment, request_id=request_id, blocks=[_reserve_block(block) for block in blocks]
                )
                reserved = stub.Reserve(request, timeout=deadline.remaining)
                written = _write(arena, reserved, source, deadline)
                refused: Sequence[int] = ()
                if written:
                    commit = pb.CommitRequest(attachment=attachment, lease_id=reserved.lease_id, blocks=written)
                    seconds_left = deadline.remaining  # much less than `timeout_seconds` after a slow copy
                    with self._connection.judging(attachment, seconds_left):
                        refused = stub.Commit(commit, timeout=seconds_left).refused_slots
                num_stored = len(written) - len(refused)
                is_open = num_stored < len(reserved.slots)
                num_refused = reserved.num_refused + len(reserved.slots) - num_stored
                return StoreResult(num_stored, reserved.num_present, num_refused)
        except NoArenaError as error:
            is_open = False
            raise TierUnavailable("ram_off", self.off_reason) from error
        finally:
            if is_open:
                self._connection.settle(request_id, set(), SETTLE_SECONDS)

    def report(
        self,
        rows: Sequence[DigestRow],
        device_added: Sequence[bytes],
        device_removed: Sequence[bytes],
        touched: Sequence[bytes],
        load: LoadReport | None,
        timeout_seconds: float,
        parked: Sequence[bytes] = (),
    ) -> None:
        """Tell the sidecar of digests, device residency, uses, load and chains that were parked.

        Raises:
            TierUnavailable: it was not told; after the next attach it must be told all residency anew.
        """
        with self._sequence_lock, self._connection.call(timeout_seconds) as (stub, attachment):
            self._sequence += 1
            request = pb.ReportRequest(
                attachment=attachment,
                sequence=self._sequence,
                rows=[pb.ReportRequest.Row(digest=row.digest, tokens=row.tokens, address=row.address) for row in rows],
                device_added=device_added,
                device_removed=device_removed,
                touched=touched,
                parked=parked,
                load=_load_message(load),
            )
            stub.Report(request, timeout=timeout_seconds)

    def hand_over(self, budget_bytes: int, budget_seconds: float) -> int:
        """Have blocks pushed to the pool that lacks them, hottest sessions first; return how many were.

        Raises:
            TierUnavailable: nobody could be asked, or no answer came in time.
        """
        timeout_seconds = budget_seconds + HAND_OVER_SLACK_SECONDS
        with self._connection.call(timeout_seconds) as (stub, attachment):
            request = pb.HandOverRequest(
                attachment=attachment, budget_bytes=budget_bytes, budget_seconds=budget_seconds
            )
            reply = stub.HandOver(request, timeout=timeout_seconds)
        if reply.num_left:
            _log.info("hand-over ended early %s", fields(num_blocks=reply.num_blocks, num_left=reply.num_left))
        return reply.num_blocks

    def place(self, address: bytes, tier: str | None, timeout_seconds: float) -> str:
        """Have a proof's block, which lies in RAM, moved to `tier` alone (None: to none); return why not, if so.

        Raises:
            TierUnavailable: nobody could be asked, or no answer came in time.
        """
        with self._connection.call(timeout_seconds) as (stub, attachment):
            request = pb.PlaceRequest(
                attachment=attachment,
                address=address,
                tier=_TIERS[tier] if tier is not None else pb.TIER_NAME_UNSPECIFIED,
                budget_seconds=timeout_seconds * PLACE_SHARE,
            )
            return stub.Place(request, timeout=timeout_seconds).reason

    def close(self) -> None:
        """Detach, wait for calls that copy, unmap, release the lock. A second call does nothing.

        What does not end in time keeps the lock to the end of the process: a copy may touch the arena still.
        """
        if self._connection.close():
            self._lock.release()

    def _attached(self) -> None:
        try:
            if self.on_attach is not None:
                self.on_attach()
        except TierUnavailable as error:  # gone again already; the next attach calls again
            _log.debug("after the attach: %s", error)

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def _count_failures(self, run: LoadRun) -> None:
        for _, tier, reason in run.suspects:
            self.num_integrity_failures += 1
            if self.on_integrity_failure is not None:
                self.on_integrity_failure(tier, reason)


def _write(
    arena: MappedArena, reserved: pb.ReserveReply, source: Callable[[int, memoryview], None], deadline: Deadline
) -> list[pb.CommitRequest.Block]:
    """Fill the reserved slots and hash what lies in them then; stop when there is no time left to commit."""
    written = []
    for lent in reserved.slots:
        if deadline.expired:
            raise TierUnavailable("deadline", "the copy took too long")
        if not arena.headers.is_writable(lent.slot, lent.generation):
            continue  # the lease was lost meanwhile
        payload = arena.payload(lent.slot)
        source(lent.position, payload)
        digest = xxhash.xxh3_128_digest(payload)
        written.append(
            pb.CommitRequest.Block(
                slot=lent.slot, generation=lent.generation, xxh3_128=digest, payload_bytes=len(payload)
            )
        )
    return written


def _reserve_block(block: BlockRecord) -> pb.ReserveRequest.Block:
    return pb.ReserveRequest.Block(
        address=block.address,
        parent=block.parent,
        index=block.index,
        tokens=block.tokens,
        tenant_tag=block.tenant_tag,
    )


def _load_message(load: LoadReport | None) -> pb.ReportRequest.Load | None:
    if load is None:
        return None
    return pb.ReportRequest.Load(
        num_running=load.num_running,
        num_waiting=load.num_waiting,
        outstanding_seconds=load.outstanding_seconds,
        prefill_tokens_per_second=load.prefill_tokens_per_second,
        free_work_seconds=load.free_work_seconds,
        ram_seconds_per_token=load.ram_seconds_per_token,
        disk_seconds_per_token=load.disk_seconds_per_token,
        hit_ratio=load.hit_ratio,
    )
