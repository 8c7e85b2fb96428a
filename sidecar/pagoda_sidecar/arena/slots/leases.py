"""Leases: bounded rights to read or write slots, and the quarantine of those that ended unsettled.

    open ──settle──► gone
      └──TTL, stream end, sidecar restart──► lapsed (quarantined) ──settle, lock free, an engine attaches──► gone

A lapsed lease grants nothing (no commit), but its blocks keep their slots: the engine may be in the middle of a copy.
An engine attaches only when it copies nothing, so that no lease of before its attach protects anything any more: also
one it settled already, and whose slot a kill left in its name.
Expiry is looked at when somebody asks; there is no reaper.

Rules: pure; time is passed in, in seconds of one monotonic clock. Leases are known by `layout.lease_key` of their id,
because that is what a header table entry remembers over a restart.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from pagoda_sidecar.arena.layout import lease_key
from pagoda_sidecar.arena.slots.block import Block

MAX_REMEMBERED = 4096


@dataclass(eq=False)
class Lease:
    """The slots one request may touch. A write lease's blocks leave it as they are committed."""

    key: int
    attachment: bytes
    is_write: bool
    expires_at: float
    blocks: list[Block] = field(default_factory=list)
    is_lapsed: bool = False


class Leases:
    """All leases of an arena."""

    def __init__(self) -> None:
        self._leases: dict[int, Lease] = {}
        # Ids settled already: a request that was overtaken by its own settlement must not open a lease for nobody
        self._settled: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def lapsed(self) -> list[Lease]:
        """Leases in quarantine."""
        return [lease for lease in self._leases.values() if lease.is_lapsed]

    @property
    def num_quarantined_slots(self) -> int:
        """Slots that nobody may reuse because somebody who lost his right may still touch them."""
        return len({block.slot for lease in self.lapsed for block in lease.blocks})

    def is_known(self, lease_id: str) -> bool:
        """Whether this id was granted or settled before; it grants nothing a second time."""
        key = lease_key(lease_id)
        return key in self._leases or key in self._settled

    def open(self, lease: Lease) -> None:
        """Grant `lease`."""
        assert lease.key not in self._leases, "a lease is opened once"
        self._leases[lease.key] = lease

    def hold(self, lapsed: Lease) -> None:
        """Take over a quarantined lease of an earlier life, or more blocks of one."""
        known = self._leases.setdefault(lapsed.key, lapsed)
        if known is not lapsed:
            known.blocks.extend(lapsed.blocks)

    def active(self, lease_id: str, attachment: bytes, now: float) -> Lease | None:
        """Return the lease if it still grants anything to `attachment`."""
        lease = self._leases.get(lease_key(lease_id))
        if lease is None or lease.is_lapsed or lease.attachment != attachment or now >= lease.expires_at:
            return None
        return lease

    def settle(self, lease_id: str) -> Lease | None:
        """Close the lease, active or lapsed, and return it so that its blocks can be given back."""
        key = lease_key(lease_id)
        self._settled[key] = None
        while len(self._settled) > MAX_REMEMBERED:
            self._settled.popitem(last=False)
        return self._leases.pop(key, None)

    def lapse_expired(self, now: float) -> list[Lease]:
        """Quarantine leases past their time; return those that were not yet."""
        return self._lapse(lease for lease in self._leases.values() if now >= lease.expires_at)

    def lapse_attachment(self, attachment: bytes) -> list[Lease]:
        """Quarantine what an attachment still held when its stream ended."""
        return self._lapse(lease for lease in self._leases.values() if lease.attachment == attachment)

    def close_lapsed(self) -> list[Lease]:
        """Close and return all quarantined leases: nobody touches their slots any more."""
        gone = self.lapsed
        for lease in gone:
            del self._leases[lease.key]
        return gone

    def _lapse(self, leases: Iterable[Lease]) -> list[Lease]:
        fresh = [lease for lease in leases if not lease.is_lapsed]
        for lease in fresh:
            lease.is_lapsed = True
        return fresh
