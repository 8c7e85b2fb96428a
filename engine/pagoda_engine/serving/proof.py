"""What an engine shows of itself before it takes requests, and goes on showing: it generates, and its tiers work.

    prove: a token generated ──► each configured tier: store ─► only there ─► load back ─► equal bytes ──► open the gate
    watch: what failed again, ever more seldom; everything again when the sidecar says something new of its tiers

A tier that does not work keeps nobody from being served: it is said, and tried again until it does.

Rules: every block is new, in a scope of its own that no request can reach, and is removed again; neither it nor the
token is counted as anybody's. The first proof is over in `PROOF_SECONDS`, whatever hangs.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pagoda_engine.core.request import NewRequest, RequestRejected, TokenEvent
from pagoda_engine.core.tiers import BlockRecord, LoadResult, Part, StoreResult, TierUnavailable
from pagoda_engine.model.interface import Sampling
from pagoda_engine.serving.errors import StartError
from pagoda_engine.serving.generation import Submitter
from pagoda_protocol.addresses import block_address
from pagoda_runtime.deadlines import Deadline, backoff
from pagoda_runtime.logs import fields
from pagoda_runtime.metrics import Instrument

_log = logging.getLogger(__name__)

TIERS = ("ram", "disk", "pool")
OK, NONE = "ok", "none"

PROOF_SECONDS = 2.0  # of all tiers together
TIER_SECONDS = 1.2
ATTACH_SECONDS = 1.0  # of these for a sidecar that is not there yet
REMOVE_SECONDS = 0.3
GENERATE_SECONDS = 120.0
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 0.5, 30.0
_STOP_SECONDS = 0.5
_LOOK_SECONDS = 0.02
_MAX_REASON = 200


class ProofClient(Protocol):
    """What a proof needs of the tiers' client; every call is bounded by its timeout."""

    on_change: Callable[[], None] | None  # called from any thread when the tiers, or who keeps them, changed

    @property
    def tiers(self) -> tuple[str, ...] | None:
        """The configured tiers; None: not known yet."""

    @property
    def state(self) -> str:
        """The mark of all that was said last of them."""

    @property
    def attached(self) -> bool:
        """Whether calls have a chance now."""

    @property
    def has_ram(self) -> bool:
        """Whether there is a RAM tier now."""

    @property
    def off_reason(self) -> str:
        """Why the RAM tier, or all of them, cannot be used; empty if they can."""

    def store(
        self, blocks: Sequence[BlockRecord], source: Callable[[int, memoryview], None], timeout_seconds: float
    ) -> StoreResult:
        """Store blocks in RAM."""

    def place(self, address: bytes, tier: str | None, timeout_seconds: float) -> str:
        """Move a block that lies in RAM to `tier` alone (None: to none); return why not, if so."""

    def lookup(self, addresses: Sequence[bytes], timeout_seconds: float, *, is_proof: bool) -> list[Part]:
        """Say where blocks are."""

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
        is_proof: bool,
    ) -> LoadResult:
        """Load blocks back."""


@dataclass(frozen=True)
class Scope:
    """Where the proofs' blocks live, and what they look like."""

    root: bytes  # 32: of chains that no caller's begins with
    tenant_tag: int
    block_tokens: int
    payload_bytes: int


class Prover:
    """Proves one engine, and keeps what came of it."""

    def __init__(self, engine: Submitter, client: ProofClient | None, scope: Scope, proofs: Instrument) -> None:
        """`proofs` counts the tries, by tier and result."""
        self._engine = engine
        self._client = client
        self._scope = scope
        self._proofs = proofs
        self._has_generated = False
        # The results by tier, and the state of which all of them are: one value, so that nobody reads halves of two
        self._proof: tuple[Mapping[str, str], str] = (dict.fromkeys(TIERS, NONE), "")
        self._changed = threading.Event()
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        if client is not None:
            client.on_change = self._changed.set

    def describe(self) -> dict[str, Any]:
        """Return the proof as `/ready` shows it."""
        results, state = self._proof
        return {"generated": self._has_generated, "tiers": dict(results), "state": state}

    def prove(self) -> None:
        """Generate a token and try every tier once.

        Raises:
            StartError: no token came; an engine that cannot do that must not be opened.
        """
        self._generate()
        self._has_generated = True
        if self._client is not None:
            deadline = Deadline(PROOF_SECONDS)
            self._wait_for_tiers(self._client, ATTACH_SECONDS)
            self._changed.clear()
            self._try(self._client, TIERS, deadline)

    def watch(self) -> None:
        """Go on in a thread of its own."""
        if self._client is not None:
            arguments = (self._client,)
            self._thread = threading.Thread(target=self._work, args=arguments, name="tier-proof", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread; what it waits for is left to its deadline."""
        self._is_stopping = True
        self._changed.set()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def _generate(self) -> None:
        ended = threading.Event()
        events: list[TokenEvent] = []

        def sink(event: TokenEvent) -> None:
            events.append(event)
            if event.finish is not None:
                ended.set()

        request = _proof_request(self._scope)
        try:
            self._engine.submit(request, sink)
        except RequestRejected as rejected:
            raise StartError(f"the engine refused its own first request: {rejected.message}") from rejected
        if not ended.wait(GENERATE_SECONDS):
            self._engine.abort(request.request_id)
            raise StartError(f"the model generated no token in {GENERATE_SECONDS:g} s")
        if not any(event.tokens for event in events):
            raise StartError(f"the model generated no token: {events[-1].error or events[-1].finish}")

    def _wait_for_tiers(self, client: ProofClient, seconds: float) -> None:
        """Give a sidecar that is just being attached to a moment."""
        deadline = Deadline(seconds)
        while client.tiers is None and not deadline.expired:
            time.sleep(_LOOK_SECONDS)

    def _work(self, client: ProofClient) -> None:
        waits, is_broken = backoff(FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS), False
        while not self._is_stopping:
            failed = (
                TIERS
                if is_broken
                else tuple(tier for tier, result in self._proof[0].items() if result not in (OK, NONE))
            )
            has_changed = self._changed.wait(next(waits) if failed else None)
            self._changed.clear()
            if self._is_stopping:
                return
            if has_changed:
                waits = backoff(FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS)
            try:
                self._try(client, TIERS if has_changed else failed, Deadline(PROOF_SECONDS))
                is_broken = False
            except Exception:  # noqa: BLE001 - the thread's outermost loop: what fails once is tried again
                _log.exception("a proof of the tiers broke")
                is_broken = True

    def _try(self, client: ProofClient, due: Collection[str], deadline: Deadline) -> None:
        """Try the tiers that are `due` and configured."""
        state, former = client.state, self._proof
        results = dict(former[0])
        for tier in TIERS:
            if client.tiers is not None and tier not in client.tiers:
                results[tier] = NONE
            elif tier in due or results[tier] == NONE:
                reason = self._prove_tier(client, tier, min(TIER_SECONDS, deadline.remaining))
                results[tier] = f"failed: {reason[:_MAX_REASON]}" if reason else OK
                self._proofs.add(tier=tier, result="failed" if reason else OK)
                self._tell(tier, results[tier])
        self._proof = (results, state if due is TIERS else former[1])

    def _prove_tier(self, client: ProofClient, tier: str, seconds: float) -> str:
        """Send a new block through `tier`; return what is wrong with it, if anything."""
        if not client.attached or not client.has_ram:
            return client.off_reason or "the sidecar does not answer"
        trip = _RoundTrip(client, self._scope, tier, Deadline(seconds), lambda: self._is_stopping)
        try:
            return trip.run()
        except TierUnavailable as error:
            return str(error)
        finally:
            trip.clean_up()

    def _tell(self, tier: str, result: str) -> None:
        former = self._proof[0][tier]
        if (former == OK) != (result == OK):
            level = logging.INFO if result == OK else logging.WARNING
            _log.log(level, "tier proven %s", fields(tier=tier, result=result))


class _RoundTrip:
    """One new block's way through one tier."""

    def __init__(
        self, client: ProofClient, scope: Scope, tier: str, deadline: Deadline, is_cancelled: Callable[[], bool]
    ) -> None:
        self._client = client
        self._scope = scope
        self._tier = tier
        self._deadline = deadline
        self._is_cancelled = is_cancelled
        self._payload = secrets.token_bytes(scope.payload_bytes)
        tokens = [secrets.randbelow(2**32) for _ in range(scope.block_tokens)]
        self._address = block_address(scope.root, tokens)

    def run(self) -> str:
        """Return what is wrong, if anything.

        Raises:
            TierUnavailable: the sidecar could not be asked.
        """
        return self._store() or self._find() or self._load()

    def clean_up(self) -> None:
        """Leave nothing behind."""
        try:
            self._client.place(self._address, None, REMOVE_SECONDS)
        except TierUnavailable as error:
            _log.debug("a proof's block stays until its place is needed: %s", error)

    def _store(self) -> str:
        def source(_: int, slot: memoryview) -> None:
            slot[:] = self._payload

        scope = self._scope
        block = BlockRecord(self._address, scope.root, 0, scope.block_tokens, scope.tenant_tag)
        if not self._client.store([block], source, self._deadline.remaining).stored:
            return "no slot in RAM was to be had"
        return "" if self._tier == "ram" else self._client.place(self._address, self._tier, self._deadline.remaining)

    def _find(self) -> str:
        parts = self._client.lookup([self._address], self._deadline.remaining, is_proof=True)
        found = parts[0].tier if parts else "nowhere"
        return "" if found == self._tier else f"what was stored is to be found {found}"

    def _load(self) -> str:
        came: list[bytes] = []
        result = self._client.load(
            self._scope.root,
            [self._address],
            0,
            1,
            lambda position, payload: came.append(bytes(payload)),
            self._deadline.remaining,
            self._is_cancelled,
            is_proof=True,
        )
        if result.sources != [self._tier]:
            return f"what was stored does not come back: {result.reason or result.sources}"
        return "" if came == [self._payload] else "other bytes came back than were stored"


def _proof_request(scope: Scope) -> NewRequest:
    """One token of prompt, one of output: no block of it is ever full."""
    return NewRequest(
        request_id=f"proof-{secrets.token_hex(8)}",
        prompt=(0,),
        root=scope.root,
        tenant_tag=scope.tenant_tag,
        sampling=Sampling(),
        max_tokens=1,
        stop_token_ids=frozenset(),
        arrival=time.monotonic(),
        is_proof=True,
    )
