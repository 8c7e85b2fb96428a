"""Idle sessions leave the device once they are safe below.

A *session* is a leaf of the prefix tree with the blocks only it uses; it is idle when nothing touched the leaf for
`idle_seconds`.

    engine thread                tier thread                      engine thread
    look: an idle leaf ─submit─► lookup (its chain) ──event──► finish: all below: drop, leaf first, and report
                                                                       else: store what is missing, ask again later

Rules:
- Dropped is only what is below as a whole, counted from the root, and was touched by nobody since the look: both are
  seen in the engine's thread, in the moment of the drop.
- A look costs the same however many blocks there are: leaves wait in order of their last touch.
- Nothing here holds a page; a tier that hangs delays parking and nothing else.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from pagoda_engine.core.instruments import Instruments
from pagoda_engine.core.prefix import Block, PrefixTable
from pagoda_engine.core.storing import Storer
from pagoda_engine.core.workers import Outage, TierAccess, reason_of

_MAX_SESSIONS = 4  # asked about at once
_MAX_LEAVES_PER_LOOK = 64  # of those that are no leaves any more
_LOOK_SECONDS = 0.05  # between two looks
_LOOKUP_SECONDS = 1.0
_RETRY_SECONDS = 1.0  # doubled with each attempt
_MAX_RETRY_SECONDS = 16.0
_MAX_WAIT_SECONDS = 1.0  # the idle time may change while the engine sleeps


@dataclass(eq=False)
class Session:
    """An idle session on its way down. The fields below the line are written by the tier thread."""

    leaf: Block
    last_use: int  # of the leaf, when it was found idle
    num_attempts: int = 0
    addresses: tuple[bytes, ...] = ()  # of its whole chain
    # ---
    num_below: int = 0
    reason: str | None = None


class Parking:
    """Finds, checks and drops idle sessions. All but `_run` is for the engine's thread."""

    def __init__(
        self,
        access: TierAccess,
        table: PrefixTable,
        storer: Storer,
        idle_seconds: Callable[[], float],
        instruments: Instruments,
    ) -> None:
        self.on_parked: Callable[[bytes], None] = lambda address: None
        self.jobs: set[Session] = set()  # asked about
        self._access = access
        self._table = table
        self._storer = storer
        self._idle_seconds = idle_seconds
        self._instruments = instruments
        self._leaves: OrderedDict[bytes, tuple[Block, float]] = OrderedDict()  # by last touch; some are leaves no more
        self._sessions: dict[bytes, Session] = {}  # asked about or put off, by the leaf's address
        self._put_off: list[tuple[float, int, Session]] = []  # heap of (due, tie, session), stale entries are skipped
        self._ties = count()
        self._look_at = 0.0
        self._outage = Outage("a look for an idle session")

    def touched(self, leaf: Block) -> None:
        """A leaf was let go by its last holder, or has become one."""
        session = self._sessions.get(leaf.address)
        if session is not None and session.leaf is leaf and session.last_use == leaf.last_use:
            return  # a store let go of it, no user
        self._sessions.pop(leaf.address, None)
        self._leaves[leaf.address] = leaf, self._access.clock()
        self._leaves.move_to_end(leaf.address)

    def removed(self, address: bytes) -> None:
        """The device holds a block no longer."""
        self._leaves.pop(address, None)
        self._sessions.pop(address, None)

    def look(self) -> None:
        """Ask about the sessions that are idle by now, a few at a time."""
        now = self._access.clock()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_SECONDS
        while len(self.jobs) < _MAX_SESSIONS and (session := self._next_idle(now)) is not None:
            self._begin(session)

    def seconds_to_wait(self) -> float | None:
        """How long there is nothing to look for; None as long as only news can change that."""
        if len(self.jobs) >= _MAX_SESSIONS:
            return None
        due = [self._put_off[0][0]] if self._put_off else []
        if self._leaves:
            _, touched_at = next(iter(self._leaves.values()))
            due.append(touched_at + self._idle_seconds())
        if not due:
            return None
        now = self._access.clock()
        return max(0.0, min(max(self._look_at, min(due)), now + _MAX_WAIT_SECONDS) - now)

    def finish(self, session: Session) -> None:
        """Drop what is safe, or put it off."""
        self.jobs.remove(session)
        if not self._is_untouched(session):
            if self._sessions.get(session.leaf.address) is session:
                del self._sessions[session.leaf.address]
            self._count_stay("touched")
        elif session.reason is not None:
            self._stay(session, session.reason)
        elif session.num_below < len(session.addresses):
            self._storer.offer_lost(_chain(session.leaf)[session.num_below :])
            self._stay(session, "missing")
        else:
            self._drop(session)

    def check_integrity(self) -> None:
        """Assert that every session is known here and none is forgotten."""
        for block in self._table:
            is_known = block.address in self._leaves or block.address in self._sessions
            assert is_known or not self._table.is_idle_leaf(block), "a session that is never parked"
        waiting = {id(session) for _, _, session in self._put_off} | {id(session) for session in self.jobs}
        assert all(id(session) in waiting for session in self._sessions.values())
        assert all(session.leaf in self._table for session in self._sessions.values())

    def _next_idle(self, now: float) -> Session | None:
        while self._put_off and self._put_off[0][0] <= now:
            _, _, session = heapq.heappop(self._put_off)
            if self._sessions.get(session.leaf.address) is not session:
                continue
            if self._is_untouched(session):
                return session
            del self._sessions[session.leaf.address]
        for _ in range(min(_MAX_LEAVES_PER_LOOK, len(self._leaves))):
            leaf, touched_at = next(iter(self._leaves.values()))
            if touched_at + self._idle_seconds() > now:
                return None
            self._leaves.popitem(last=False)
            if self._table.is_idle_leaf(leaf):
                session = Session(leaf, leaf.last_use)
                self._sessions[leaf.address] = session
                return session
        return None

    def _begin(self, session: Session) -> None:
        session.num_attempts += 1
        client = self._access.client
        if not client.attached:
            self._stay(session, "detached")
        elif not client.has_ram:
            self._stay(session, "ram_off")
        else:
            session.addresses = tuple(block.address for block in _chain(session.leaf))
            session.num_below, session.reason = 0, None
            self.jobs.add(session)
            self._access.workers.submit(lambda: self._run(session))

    def _is_untouched(self, session: Session) -> bool:
        leaf = session.leaf
        return self._table.is_idle_leaf(leaf) and leaf.last_use == session.last_use

    def _drop(self, session: Session) -> None:
        """Drop the blocks only this session uses; a block above them that somebody used since stays."""
        num_blocks = 0
        block: Block | None = session.leaf
        while block is not None and not _was_used_after(session, block) and self._table.drop(block):
            num_blocks += 1
            block = block.parent
        self._instruments.parked_sessions.add(1)
        self._instruments.parked_blocks.add(num_blocks)
        self.on_parked(session.leaf.address)

    def _stay(self, session: Session, reason: str) -> None:
        self._count_stay(reason)
        seconds = min(_MAX_RETRY_SECONDS, _RETRY_SECONDS * 2 ** (session.num_attempts - 1))
        heapq.heappush(self._put_off, (self._access.clock() + seconds, next(self._ties), session))

    def _count_stay(self, reason: str) -> None:
        self._instruments.sessions_not_parked.add(1, reason=reason)

    def _run(self, session: Session) -> None:
        """The tier thread's part; whatever happens, the engine hears of the end."""
        try:
            end = 0
            for part in self._access.client.lookup(session.addresses, _LOOKUP_SECONDS):
                if part.first != end:
                    break
                end += part.count
            session.num_below = end
            self._outage.worked()
        except Exception as error:  # noqa: BLE001 - whatever a tier does, the session stays where it is
            session.reason = reason_of(error)
            self._outage.failed(error)
        finally:
            self._access.post(session)


def _chain(leaf: Block) -> list[Block]:
    """Return its blocks from the root on."""
    chain = [leaf]
    while (parent := chain[-1].parent) is not None:
        chain.append(parent)
    return chain[::-1]


def _was_used_after(session: Session, block: Block) -> bool:
    """Whether `block` was used since the session was: whoever lets go of a chain does so from its leaf up, so that
    uses rise by one from block to block."""
    return block.last_use > session.last_use + session.leaf.index - block.index
