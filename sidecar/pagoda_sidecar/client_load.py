"""One load on the engine's side: events in any order become copies in the order asked for.

front first: first, first + 1, … up to the granted stop        back first: stop - 1, stop - 2, … down to the floor
"""

import queue
from collections.abc import Callable
from dataclasses import dataclass

import grpc
import xxhash

from pagoda_protocol.records import RecordError, unpack_header
from pagoda_protocol.tier import tier_pb2 as pb
from pagoda_runtime.deadlines import Deadline
from pagoda_sidecar.client_arena import MappedArena, NoArenaError
from pagoda_sidecar.client_connection import TIER_NAMES, EventStream
from pagoda_sidecar.client_values import LoadResult

CANCEL_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Copying:
    """What a load copies, from where, into what, and what may stop it."""

    arena: MappedArena
    namespace: bytes  # 32
    request: pb.LoadRequest
    sink: Callable[[int, memoryview], None]
    deadline: Deadline
    is_cancelled: Callable[[], bool]
    arrived: Callable[[int, str], None] = lambda position, source: None  # told of each block once it was verified
    floor: Callable[[], int] | None = None  # back first: nothing below it is wanted any more


class NoGrantError(Exception):
    """The sidecar did not even answer with a grant before the deadline."""


class LoadRun:
    """Follows the events of one load. `suspects` are slots that failed verification, as (slot, tier, reason)."""

    def __init__(self, copying: Copying) -> None:
        self.suspects: list[tuple[int, str, str]] = []
        self._copying = copying
        request = copying.request
        self._step = -1 if request.order == pb.ORDER_BACK_FIRST else 1
        self._first, self._stop = request.first, request.stop
        self._next = self._stop - 1 if self._step < 0 else self._first
        self._is_granted = False
        self._ready: dict[int, pb.LoadEvent.Ready] = {}
        self._missed: dict[int, str] = {}
        self._sources: list[str] = []

    def follow(self, stream: EventStream[pb.LoadEvent]) -> LoadResult:
        """Copy until all has come, something is missing, time is up or the caller lost interest.

        Raises:
            NoGrantError: the deadline passed without any answer.
            grpc.RpcError: the call was refused, or failed before it was granted.
        """
        reason = None
        while reason is None and not self._has_all:
            reason = self._take_event(stream) or self._advance()
        if reason is None and self._stop < self._copying.request.stop:
            reason = "no_slots"
        return LoadResult(self._sources, reason)

    @property
    def _has_all(self) -> bool:
        """Whether everything that is wanted still was copied."""
        if self._step > 0:
            return self._next >= self._stop
        floor = self._first if self._copying.floor is None else max(self._first, self._copying.floor())
        return self._next < floor

    def _take_event(self, stream: EventStream[pb.LoadEvent]) -> str | None:
        """Wait for one event; return why to stop, if so."""
        if self._copying.is_cancelled():
            return "cancelled"
        try:
            event = stream.next(min(CANCEL_POLL_SECONDS, self._copying.deadline.remaining))
        except queue.Empty:
            if not self._copying.deadline.expired:
                return None
            if not self._is_granted:
                raise NoGrantError("no grant before the deadline") from None
            return "deadline"
        except grpc.RpcError:
            if not self._is_granted:
                raise
            return "no_sidecar"
        if event is None:
            return "miss"
        if event.HasField("grant"):
            self._is_granted = True
            self._stop = min(self._stop, event.grant.stop)
            if self._step < 0:
                self._next = self._stop - 1
        elif event.HasField("ready"):
            self._ready[event.ready.position] = event.ready
        elif event.HasField("missed"):
            self._missed[event.missed.position] = event.missed.reason
        return None

    def _advance(self) -> str | None:
        """Copy what is ready next in order; return why to stop, if so."""
        while not self._has_all and (ready := self._ready.pop(self._next, None)) is not None:
            if self._copying.is_cancelled():
                return "cancelled"
            reason = self._copy(ready)
            if reason is not None:
                return reason
            source = TIER_NAMES.get(ready.source, "ram")
            self._sources.append(source)
            self._copying.arrived(self._next, source)
            self._next += self._step
        return None if self._has_all else self._missed.get(self._next)

    def _copy(self, ready: pb.LoadEvent.Ready) -> str | None:
        """Copy one block between two looks at its generation; return why it is a miss, if so."""
        headers, slot = self._copying.arena.headers, ready.slot
        try:
            payload = self._copying.arena.payload(slot)
        except NoArenaError:
            return "generation"
        if not headers.is_sealed(slot, ready.generation):
            return "generation"
        damage = None
        try:
            header = unpack_header(headers.record(slot))
            if (
                header.address != self._copying.request.addresses[ready.position]
                or header.namespace != self._copying.namespace[: len(header.namespace)]
            ):
                damage = "address"
            elif header.payload_bytes != len(payload):
                damage = "length"
            else:
                self._copying.sink(ready.position, payload)
                if xxhash.xxh3_128_digest(payload) != header.xxh3:
                    damage = "checksum"
        except RecordError as error:
            damage = error.reason
        if not headers.is_sealed(slot, ready.generation):
            return "generation"
        if damage is None:
            return None
        self.suspects.append((slot, TIER_NAMES.get(ready.source, "ram"), damage))
        return "integrity"
