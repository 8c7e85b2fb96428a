"""The gRPC service: each call is checked, handed to the part that decides, and answered.

Rules: nothing here waits on anything but the pool and the tier's threads; every refusal is counted by call and reason.
"""

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any, NoReturn, TypeAlias

import grpc
from grpc.aio import ServicerContext

from pagoda_protocol.tier import tier_pb2 as pb
from pagoda_protocol.tier.tier_pb2_grpc import TierServicer
from pagoda_sidecar import requests
from pagoda_sidecar.arena.tier import RamTier
from pagoda_sidecar.attachment import Attachment
from pagoda_sidecar.hand_over import hand_over
from pagoda_sidecar.lookups import look_up
from pagoda_sidecar.proofs import place
from pagoda_sidecar.requests import MalformedError, SkewError
from pagoda_sidecar.sidecar import LiveEngineError, LockNotHeldError, Sidecar

_log = logging.getLogger(__name__)

Context: TypeAlias = ServicerContext[Any, Any]

# A pool that is slow to say what exists must not make a lookup useless
LOOKUP_SHARE = 0.7
DEFAULT_SECONDS = 1.0
MAX_PLACE_SECONDS = 5.0


class TierService(TierServicer):
    """See the head of this file."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar

    # The stubs know streams as generators only; writing to the context is the other form grpc.aio takes, and the one
    # whose clean-up runs at once when the peer is gone.
    async def Attach(self, request: pb.AttachRequest, context: Context) -> None:  # type: ignore[override]
        """Hold the engine's stream open; tell it of each change of the tiers."""
        attachment = await self._attach(request, context)
        try:
            while not attachment.is_ended:
                attachment.changed.clear()
                event = self._sidecar.describe(attachment)
                attachment.tell(event.SerializeToString(deterministic=True))
                await context.write(event)
                await attachment.changed.wait()
        finally:
            self._sidecar.detach(attachment)

    async def Lookup(self, request: pb.LookupRequest, context: Context) -> pb.LookupReply:
        """Say what is where."""
        async with self._checked("lookup", context):
            self._attachment(request.attachment)
            addresses = requests.addresses("addresses", request.addresses)
            seconds = (context.time_remaining() or DEFAULT_SECONDS) * LOOKUP_SHARE
            return await look_up(self._sidecar, addresses, seconds, is_counted=not request.is_proof)

    async def Load(self, request: pb.LoadRequest, context: Context) -> None:  # type: ignore[override]
        """Grant, then tell of each block as it becomes ready."""
        async with self._checked("load", context):
            attachment = self._attachment(request.attachment)
            run = requests.run(request)
            request_id = requests.request_id(request.request_id)
            tier = self._tier()
            self._check_not_ended(tier, request_id, attachment)
            job = self._sidecar.loads.find(request_id)
            if job is None:
                self._check_unknown(tier, request_id)
                is_back_first = request.order == pb.ORDER_BACK_FIRST
                is_use = not request.is_proof
                job = self._sidecar.loads.start(tier, request_id, attachment.holder, run, is_back_first, is_use)
            async with contextlib.aclosing(job.follow()) as events:
                async for event in events:
                    await context.write(event)

    async def Reserve(self, request: pb.ReserveRequest, context: Context) -> pb.ReserveReply:
        """Lend slots to write into."""
        async with self._checked("reserve", context):
            attachment = self._attachment(request.attachment)
            blocks = requests.new_blocks(request)
            request_id = requests.request_id(request.request_id)
            tier = self._tier()
            self._check_not_ended(tier, request_id, attachment)
            known = attachment.reply(request_id)
            if known is not None:
                return known
            self._check_unknown(tier, request_id)
            reservation = tier.reserve(request_id, attachment.holder, blocks)
            reply = pb.ReserveReply(
                lease_id=request_id,
                num_present=reservation.num_present,
                num_refused=reservation.num_refused,
                slots=[
                    pb.ReserveReply.Slot(position=position, slot=block.slot, generation=block.generation)
                    for position, block in reservation.slots
                ],
            )
            return attachment.remember(request_id, reply)

    async def Commit(self, request: pb.CommitRequest, context: Context) -> pb.CommitReply:
        """Seal what the engine has written."""
        async with self._checked("commit", context):
            attachment = self._attachment(request.attachment)
            tier = self._tier()
            requests.check_commit(request, tier.arena.geometry.payload_bytes)
            reply = pb.CommitReply()
            for one in request.blocks:
                block = tier.commit(request.lease_id, attachment.id, one.slot, one.generation, one.xxh3_128)
                if block is None:
                    reply.refused_slots.append(one.slot)
                else:
                    self._sidecar.pusher.sealed(tier, block)
            attachment.has_handed_over = False
            return reply

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortReply:
        """Take slots back unsealed."""
        async with self._checked("abort", context):
            self._attachment(request.attachment)
            self._settle(request.lease_id)
            return pb.AbortReply()

    async def Settle(self, request: pb.SettleRequest, context: Context) -> pb.SettleReply:
        """Take slots back, whatever became of their lease."""
        async with self._checked("settle", context):
            self._attachment(request.attachment)
            requests.check_settle(request)
            if request.suspect_slots:
                self._suspect(set(request.suspect_slots))
            for lease_id in request.lease_ids:
                self._settle(lease_id)
            return pb.SettleReply()

    async def Report(self, request: pb.ReportRequest, context: Context) -> pb.ReportReply:
        """Follow digests, device residency, uses and load."""
        async with self._checked("report", context):
            attachment = self._attachment(request.attachment)
            requests.check_report(request)
            if request.sequence > attachment.last_report:
                attachment.last_report = request.sequence
                self._report(request)
                if request.HasField("load"):
                    load = request.load
                    attachment.hit_ratio = load.hit_ratio if load.HasField("hit_ratio") else None
            else:  # a repeat, or overtaken: what it says is no longer so
                self._sidecar.count_refusal("report", "repeated")
            return pb.ReportReply()

    async def HandOver(self, request: pb.HandOverRequest, context: Context) -> pb.HandOverReply:
        """Push what the pool lacks."""
        async with self._checked("hand_over", context):
            attachment = self._attachment(request.attachment)
            requests.check_hand_over(request)
            if self._sidecar.tier is None:
                return pb.HandOverReply()
            sidecar = self._sidecar
            result = await hand_over(
                self._tier(), sidecar.disk, sidecar.pool, sidecar.pusher, request.budget_bytes, request.budget_seconds
            )
            attachment.has_handed_over = result.num_left == 0
            return pb.HandOverReply(num_blocks=result.num_blocks, num_left=result.num_left)

    async def Place(self, request: pb.PlaceRequest, context: Context) -> pb.PlaceReply:
        """Move a block of a proof."""
        async with self._checked("place", context):
            self._attachment(request.attachment)
            requests.check_place(request)
            placing = place(
                self._sidecar, request.address, request.tier, min(request.budget_seconds, MAX_PLACE_SECONDS)
            )
            return pb.PlaceReply(reason=await placing)

    async def _attach(self, request: pb.AttachRequest, context: Context) -> Attachment:
        code, reason, message = grpc.StatusCode.OK, "ok", ""
        try:
            requests.check_versions(request)
            requests.check_attach(request)
            attachment = await self._sidecar.attach(request)
            self._sidecar.counters.attaches.add(1, result="ok")
            return attachment
        except SkewError as error:
            code, reason, message = grpc.StatusCode.FAILED_PRECONDITION, error.reason, str(error)
        except MalformedError as error:
            code, reason, message = grpc.StatusCode.INVALID_ARGUMENT, "malformed", str(error)
        except LiveEngineError as error:
            code, reason, message = grpc.StatusCode.ALREADY_EXISTS, "live_engine", str(error)
        except LockNotHeldError as error:
            code, reason, message = grpc.StatusCode.FAILED_PRECONDITION, "lock", str(error)
        self._sidecar.counters.attaches.add(1, result=reason)
        return await self._refuse("attach", reason, code, message, context)

    @contextlib.asynccontextmanager
    async def _checked(self, call: str, context: Context) -> AsyncIterator[None]:
        try:
            yield
            return
        except MalformedError as error:
            refusal = ("malformed", grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except _RefusedError as error:
            refusal = (error.reason, error.code, str(error))
        await self._refuse(call, *refusal, context)

    async def _refuse(self, call: str, reason: str, code: grpc.StatusCode, message: str, context: Context) -> NoReturn:
        self._sidecar.count_refusal(call, reason)
        _log.warning("%s refused: %s", call, message)
        await context.abort(code, message)
        raise AssertionError("abort raises")

    def _attachment(self, attachment_id: bytes) -> Attachment:
        attachment = self._sidecar.attachment
        if attachment is None or attachment.id != attachment_id:
            raise _RefusedError("attachment", grpc.StatusCode.FAILED_PRECONDITION, "unknown attachment: attach again")
        return attachment

    def _tier(self) -> RamTier:
        if self._sidecar.tier is None:
            raise _RefusedError("ram_off", grpc.StatusCode.RESOURCE_EXHAUSTED, self._sidecar.ram_off_reason)
        return self._sidecar.tier

    def _check_unknown(self, tier: RamTier, request_id: str) -> None:
        """A request overtaken by its own settlement grants nothing: its caller is gone."""
        if tier.leases.is_known(request_id):
            raise _RefusedError("settled", grpc.StatusCode.ABORTED, "this request was settled already")

    def _check_not_ended(self, tier: RamTier, request_id: str, attachment: Attachment) -> None:
        """A repeat gets what it got before only while that is still its own: its slots may be another's by now."""
        if tier.has_ended(request_id, attachment.id):
            raise _RefusedError("settled", grpc.StatusCode.ABORTED, "the lease of this request has ended")

    def _settle(self, lease_id: str) -> None:
        self._sidecar.loads.cancel(lease_id)
        if self._sidecar.tier is not None:
            self._sidecar.tier.settle(lease_id)

    def _suspect(self, slots: set[int]) -> None:
        """Look again at what an engine could not verify."""
        tier = self._sidecar.tier
        blocks = [] if tier is None else [block for block in tier.index if block.is_sealed and block.slot in slots]
        if tier is None or not blocks:
            return
        for block in blocks:
            block.is_verified = False
        self._sidecar.recheck(tier, blocks)

    def _report(self, request: pb.ReportRequest) -> None:
        hints, tier = self._sidecar.hints, self._sidecar.tier
        hints.set_device(request.device_added, request.device_removed)
        for row in request.rows:
            hints.record(row.digest, row.tokens, row.address)
        for address in request.touched:
            hints.touch(address)
            if tier is not None:
                self._sidecar.disk.touch(address)
                tier.use(address)
                self._sidecar.pusher.touched(tier, address)
        if tier is not None:
            for address in request.parked:
                tier.park(address)
        if request.HasField("load"):
            load = request.load
            hints.report_load(
                {
                    "num_running": load.num_running,
                    "num_waiting": load.num_waiting,
                    "outstanding_seconds": load.outstanding_seconds,
                    "prefill_tokens_per_second": load.prefill_tokens_per_second,
                    "free_work_seconds": load.free_work_seconds,
                    "ram_seconds_per_token": load.ram_seconds_per_token,
                    "disk_seconds_per_token": load.disk_seconds_per_token,
                }
            )


class _RefusedError(Exception):
    """A call that cannot be served in this state."""

    def __init__(self, reason: str, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.code = code
