"""The engine's connection to the sidecar: attached for ever by a thread of its own, and quick to say that it is not.

        ┌───────────────────────────────── stream ended ─────────────────────────────────┐
    detached ──Attach answered──► attached ──a call failed or waited long in vain──► doubted ──ping answered──► attached
                                     └─a call waited shortly in vain─► suspected ──ping failed──► doubted
                                                                           └─────ping answered──► attached

While it is doubted, calls fail at once: a sidecar that hangs costs one deadline, once. A caller's own impatience is its
own miss: calls go on while a ping, sent at once, finds out. Leases whose settlement could not be delivered are
remembered by request id and settled as soon as the sidecar answers again.
"""

import contextlib
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import grpc

from pagoda_protocol.addresses import self_test_address
from pagoda_protocol.digests import DIGEST_VERSION
from pagoda_protocol.marks import next_mark
from pagoda_protocol.tier import PROTOCOL_VERSION, SOCKET_NAME
from pagoda_protocol.tier import tier_pb2 as pb
from pagoda_protocol.tier.tier_pb2_grpc import TierStub
from pagoda_runtime.deadlines import backoff
from pagoda_sidecar.arena.layout import LayoutError
from pagoda_sidecar.client_arena import ArenaHolder, BorrowedError
from pagoda_sidecar.client_values import EngineIdentity, TierUnavailable

_log = logging.getLogger(__name__)
_Event = TypeVar("_Event")

PING_SECONDS = 0.5
PATIENT_SECONDS = 0.5  # who waited so long in vain was not impatient
LOOK_SECONDS = 0.2
FIRST_RETRY_SECONDS = 0.05
LAST_RETRY_SECONDS = 1.0
CLOSE_SECONDS = 5.0
MAX_UNSETTLED = 4096
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_send_message_length", 64 * 2**20),
    ("grpc.max_receive_message_length", 64 * 2**20),
)

# How grpc begins a ValueError about a channel that was closed before a call, and about one closed in the middle of it
_CHANNEL_CLOSED = "Cannot invoke RPC"
TIER_NAMES: dict[int, str] = {pb.TIER_NAME_RAM: "ram", pb.TIER_NAME_DISK: "disk", pb.TIER_NAME_POOL: "pool"}


class EventStream(Generic[_Event]):
    """Reads a server's stream in a thread, so that its reader can wait with a timeout."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._queue: queue.SimpleQueue[_Event | grpc.RpcError | queue.Empty | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="tier-stream", daemon=True).start()

    def next(self, timeout_seconds: float) -> _Event | None:
        """Return the next event, None when the stream has ended.

        Raises:
            queue.Empty: nothing came in time, or `wake` was called.
            grpc.RpcError: the stream broke.
        """
        item = self._queue.get(timeout=max(0.0, timeout_seconds))
        if isinstance(item, (grpc.RpcError, queue.Empty)):
            raise item
        return item

    def wake(self) -> None:
        """Let the reader look around now, or when it next comes to read."""
        self._queue.put(queue.Empty())

    def cancel(self) -> None:
        """End the stream from our side."""
        self._call.cancel()

    def _read(self) -> None:
        try:
            for event in self._call:
                self._queue.put(event)
            self._queue.put(None)
        except grpc.RpcError as error:
            self._queue.put(error)


class Connection:
    """See the head of this file. Both callbacks run in the attach thread: after each successful attach, and whenever
    the sidecar says something new, or is gone."""

    def __init__(
        self, volume: Path, identity: EngineIdentity, on_attach: Callable[[], None], on_change: Callable[[], None]
    ) -> None:
        self.arena = ArenaHolder(volume)
        self.off_reason = "not attached yet"
        self.pool_off_reason = "not attached yet"  # later what the sidecar said last
        self.disk_off_reason = "not attached yet"  # likewise
        self._socket = volume / SOCKET_NAME
        self._identity = identity
        self._on_attach = on_attach
        self._on_change = on_change
        self.tiers: tuple[str, ...] | None = None  # that are configured; None: not known yet
        self._last_event: bytes = b""  # what was said last of the tiers
        self.state = ""
        """The mark of it, as the sidecar's summary has it; empty while no sidecar is attached."""
        self._process_id = secrets.token_bytes(16)
        self._lock = threading.Lock()
        self._stub: TierStub | None = None
        self._attachment = b""
        self._doubt = ""  # why calls fail at once although a stream is there
        self._suspicion = ""  # why a ping is due, whose outcome is not known yet
        self._unsettled: dict[str, set[int]] = {}
        self._is_closed = threading.Event()
        self._stream: EventStream[pb.AttachEvent] | None = None
        self._thread = threading.Thread(target=self._run, name="tier-attach", daemon=True)
        self._thread.start()

    @property
    def is_up(self) -> bool:
        """Whether calls are worth making."""
        return self._stub is not None and not self._doubt

    @contextlib.contextmanager
    def call(self, timeout_seconds: float) -> Iterator[tuple[TierStub, bytes]]:
        """Yield the stub and our attachment for a call that waits for `timeout_seconds` at most.

        Raises:
            TierUnavailable: now, or instead of the grpc error that a call inside raised.
        """
        with self._lock:
            stub, attachment, doubt = self._stub, self._attachment, self._doubt
        if self._is_closed.is_set():
            raise TierUnavailable("closed")
        if stub is None:
            raise TierUnavailable("no_sidecar", self.off_reason)
        if doubt:
            raise TierUnavailable("breaker", doubt)
        with self.judging(attachment, timeout_seconds):
            yield stub, attachment

    @contextlib.contextmanager
    def judging(self, attachment: bytes, timeout_seconds: float) -> Iterator[None]:
        """Draw the conclusions if a call inside fails that waited for `timeout_seconds` at most.

        Raises:
            TierUnavailable: instead of the grpc error that the call raised.
        """
        try:
            yield
        except grpc.RpcError as error:
            raise self._failed(error, attachment, timeout_seconds) from error
        except ValueError as error:  # what grpc raises for a channel closed a moment ago; others are the caller's
            if not str(error).startswith(_CHANNEL_CLOSED):
                raise
            raise self._failed(error, attachment, timeout_seconds) from error

    def settle(self, lease_id: str, suspect_slots: set[int], timeout_seconds: float) -> None:
        """Tell the sidecar that we touch no slot of the lease, now or as soon as it answers."""
        with self._lock:
            self._unsettled[lease_id] = suspect_slots
            while len(self._unsettled) > MAX_UNSETTLED:  # its leases lapse and are freed when this process ends
                del self._unsettled[next(iter(self._unsettled))]
            is_suspected = bool(self._suspicion)
        if is_suspected:
            return  # the ping that is due brings it; else who has just waited in vain would wait once more
        try:
            with self.call(timeout_seconds) as (stub, attachment):
                self._settle_all(stub, attachment, timeout_seconds)
        except TierUnavailable as error:
            _log.debug("settlement postponed: %s", error)

    def close(self) -> bool:
        """Detach and unmap; return whether nobody can touch the arena any more, within bounds."""
        self._is_closed.set()
        with self._lock:
            stream = self._stream
        if stream is not None:
            stream.cancel()
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            _log.error("the attach thread does not end")
        try:
            self.arena.settle_down(is_closing=True)
        except BorrowedError as error:
            _log.error("the arena stays mapped: %s", error)
            return False
        return not self._thread.is_alive()

    def _run(self) -> None:
        waits = backoff(FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS)
        while not self._is_closed.is_set():
            started = time.monotonic()
            try:
                self._live_once()
            except grpc.RpcError as error:
                self._set_off(_describe(error))
            except (LayoutError, BorrowedError, OSError) as error:
                self._set_off(f"arena: {error}")
            except Exception as error:  # noqa: BLE001 - a bug here must not end attaching for ever
                _log.exception("attach failed")
                self._set_off(f"bug: {error}")
            if time.monotonic() - started > LAST_RETRY_SECONDS:
                waits = backoff(FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS)
            self._is_closed.wait(next(waits))

    def _live_once(self) -> None:
        """Attach, follow the stream to its end, detach."""
        self.arena.settle_down()
        with grpc.insecure_channel(f"unix:{self._socket}", options=_OPTIONS) as channel:
            stub = TierStub(channel)
            stream: EventStream[pb.AttachEvent] = EventStream(stub.Attach(self._attach_request()))
            with self._lock:
                self._stream = stream
            try:
                self._follow(stub, stream)
            finally:
                with self._lock:
                    self._stub, self._attachment, self._stream = None, b"", None
                    self._doubt = self._suspicion = ""
                stream.cancel()
                self._changed(b"")

    def _follow(self, stub: TierStub, stream: EventStream[pb.AttachEvent]) -> None:
        is_first = True
        waits = backoff(FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS)
        while not self._is_closed.is_set():
            if not self._doubt:
                waits = backoff(FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS)
            try:
                event = stream.next(next(waits) if self._doubt else LOOK_SECONDS)
            except queue.Empty:
                # A settlement may have come while a ping was on its way: no other call needs to follow and bring it
                if self._doubt or self._suspicion or self._unsettled:
                    self._ping(stub)
                continue
            if event is None:
                self._set_off("the sidecar ended the attachment")
                return
            self._take_over(stub, event)
            if is_first:
                is_first = False
                self._on_attach()

    def _take_over(self, stub: TierStub, event: pb.AttachEvent) -> None:
        self.arena.adopt(event.arena_path, event.arena_epoch, event.slot_bytes)
        self._set_off(f"RAM tier off: {event.ram_off_reason}" if event.ram_off_reason else "")
        if event.pool_off_reason != self.pool_off_reason:
            _log.info("pool: %s", f"off: {event.pool_off_reason}" if event.pool_off_reason else "on")
        self.pool_off_reason = event.pool_off_reason
        self.disk_off_reason = event.disk_off_reason
        self.tiers = tuple(TIER_NAMES[name] for name in event.tiers if name in TIER_NAMES)
        with self._lock:
            self._stub, self._attachment = stub, event.attachment
        self._settle_all(stub, event.attachment, PING_SECONDS)
        self._changed(event.SerializeToString(deterministic=True))

    def _changed(self, event: bytes) -> None:
        if event != self._last_event:
            self._last_event = event
            self.state = next_mark(self.state, event) if event else ""  # as `Attachment.tell`
            self._on_change()

    def _ping(self, stub: TierStub) -> None:
        """Ask whether the sidecar answers, bringing the settlements it has missed."""
        try:
            self._settle_all(stub, self._attachment, PING_SECONDS, is_ping=True)
        except grpc.RpcError as error:
            if error.code() not in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
                raise  # it answers, but does not know us any more: attach anew
            with self._lock:
                self._doubt = self._doubt or self._suspicion or _describe(error)
                self._suspicion = ""
            return
        with self._lock:
            self._doubt = self._suspicion = ""

    def _settle_all(self, stub: TierStub, attachment: bytes, timeout_seconds: float, is_ping: bool = False) -> None:
        with self._lock:
            unsettled = dict(self._unsettled)
        if not unsettled and not is_ping:
            return
        slots = set().union(*unsettled.values())
        request = pb.SettleRequest(attachment=attachment, lease_ids=list(unsettled), suspect_slots=slots)
        stub.Settle(request, timeout=timeout_seconds)
        with self._lock:
            for lease_id in unsettled:
                self._unsettled.pop(lease_id, None)

    def _set_off(self, reason: str) -> None:
        if reason != self.off_reason and not self._is_closed.is_set():
            _log.info("tiers: %s", reason or "attached")
        self.off_reason = reason

    def _failed(self, error: Exception, attachment: bytes, timeout_seconds: float) -> TierUnavailable:
        """Draw the conclusions from a failed call; return what its caller is to be told."""
        code = error.code() if isinstance(error, grpc.RpcError) else grpc.StatusCode.CANCELLED
        detail = _describe(error)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return TierUnavailable("ram_off", detail)
        if code is grpc.StatusCode.FAILED_PRECONDITION:
            self._attach_anew(attachment)
            return TierUnavailable("refused", detail)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return self.late(detail, attachment, timeout_seconds)
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            self.doubt(detail, attachment)
            return TierUnavailable("no_sidecar", detail)
        return TierUnavailable("refused", detail)

    def late(self, detail: str, attachment: bytes, timeout_seconds: float) -> TierUnavailable:
        """Draw the conclusions from a wait of `timeout_seconds` in vain; return what its caller is to be told."""
        if timeout_seconds >= PATIENT_SECONDS:
            self.doubt(detail, attachment)
        else:
            self._suspect(detail, attachment)
        return TierUnavailable("deadline", detail)

    def doubt(self, detail: str, attachment: bytes) -> None:
        """Let calls fail at once until the sidecar was seen to answer, which is tried now."""
        with self._lock:
            if self._attachment != attachment or self._doubt:
                return
            self._doubt = detail
            self._wake()

    def _suspect(self, detail: str, attachment: bytes) -> None:
        """Find out now whether the sidecar answers."""
        with self._lock:
            if self._attachment != attachment or self._doubt or self._suspicion:
                return
            self._suspicion = detail
            self._wake()

    def _wake(self) -> None:
        if self._stream is not None:
            self._stream.wake()

    def _attach_anew(self, attachment: bytes) -> None:
        """The sidecar does not know us any more."""
        with self._lock:
            stream = self._stream if self._attachment == attachment else None
        if stream is not None:
            stream.cancel()

    def _attach_request(self) -> pb.AttachRequest:
        identity = self._identity
        return pb.AttachRequest(
            protocol_version=PROTOCOL_VERSION,
            process_id=self._process_id,
            namespace=identity.namespace,
            payload_bytes=identity.payload_bytes,
            block_tokens=identity.block_tokens,
            digest_version=DIGEST_VERSION,
            model_names=identity.model_names,
            template_digest=identity.template_digest,
            address_self_test=self_test_address(),
            codec=identity.codec,
        )


def _describe(error: Exception) -> str:
    if not isinstance(error, grpc.RpcError):
        return str(error)
    return f"{error.code().name}: {error.details() or ''}"
