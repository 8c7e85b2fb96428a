"""The disk tier's index: where each record lies, what it is worth, and which segment goes when room is needed.

    add ──► live ──superseded, damaged, over its tenant's share──► dead (its bytes go with its segment)
              └──its segment is evicted──► gone, or moved into the open segment if it is still hot

Worth is heat: each use of a chain adds a weight that doubles every half-life (counted in uses and stores), so that
sums stay comparable without being touched while time passes. A use heats the whole chain and a new record lifts what
lies before it, so in a whole chain no record is colder than one that follows on it, and what is kept by heat alone is
whole towards the front. A record that cannot be reached over RAM and disk together is worth nothing, and its segment
so much less.

Rules: pure; no clock, no files.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, pairwise

from pagoda_protocol.records import RecordHeader
from pagoda_sidecar.disk.chains import DISK, Chains, Link
from pagoda_sidecar.disk.layout import FILE_OVERHEAD_BYTES, FOLDER_OVERHEAD_BYTES, record_bytes

MAX_USES = 8  # of a block in RAM that count when it comes to disk
# A record that others elsewhere follow on is worth so many times its heat, because they go with it
PARENT_FACTOR = 4.0
_MAX_WEIGHT = 1e200


@dataclass(slots=True, eq=False)
class Entry:
    """A live record."""

    link: Link
    segment: "Segment"
    offset: int
    payload_bytes: int
    tenant_tag: int
    heat: float
    is_live: bool = True

    @property
    def num_bytes(self) -> int:
        """What it takes in its segment."""
        return record_bytes(self.payload_bytes)


@dataclass(eq=False)
class Segment:
    """A file of records. While it is open `file_bytes` is what it was given, then what it holds."""

    sequence: int
    file_bytes: int
    entries: set[Entry] = field(default_factory=set)
    heat: float = 0.0  # of its reachable records
    num_readers: int = 0


class DiskIndex:
    """See the head of this file. Not thread safe: it lives in the control loop."""

    def __init__(self, chains: Chains) -> None:
        self.chains = chains
        self.segments: dict[int, Segment] = {}
        self.num_evictions = 0
        self.num_share_evictions = 0  # of these, because a tenant was at its limit
        # Called with an address whose record came (True) or went (False)
        self.on_presence: Callable[[bytes, bool], None] = lambda address, is_there: None
        self._growth = 2.0
        self._weight = 1.0
        self._entries: dict[bytes, Entry] = {}
        self._tenant_bytes: dict[int, int] = {}
        self._limits: dict[int, int] = {}
        self._coldest: dict[int, list[tuple[float, int, int, Entry]]] = {}
        self._order = count()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    @property
    def used_bytes(self) -> int:
        """What the folder takes at most, everything included."""
        return FOLDER_OVERHEAD_BYTES + sum(s.file_bytes + FILE_OVERHEAD_BYTES for s in self.segments.values())

    def get(self, address: bytes) -> Entry | None:
        """Return the live record of `address`."""
        return self._entries.get(address)

    def begin(self, half_life: float) -> None:
        """Forget everything; from now on heat doubles in weight every `half_life` uses."""
        for entry in list(self):
            self.remove(entry)
        self.segments.clear()
        self._coldest = {tag: [] for tag in self._limits}
        self._weight = 1.0
        self._growth = 2.0 ** (1.0 / max(8.0, half_life))  # no batch is many half-lives

    def open_segment(self, sequence: int, file_bytes: int) -> Segment:
        """Take note of a segment."""
        assert sequence not in self.segments, "sequences never return"
        segment = self.segments[sequence] = Segment(sequence, file_bytes)
        return segment

    def add(self, header: RecordHeader, segment: Segment, offset: int, uses: int = 1) -> Entry | None:
        """Take note of a record that was written; one of the same address is superseded.

        Returns None when its place in a chain contradicts what is known: then it stays dead.
        """
        former = self._entries.get(header.address)
        link = self.chains.add(DISK, header.address, header.parent, header.index)
        if link is None:
            return None
        heat = self._weight * max(1, min(uses, MAX_USES))
        after = (self._entries.get(child.address) for child in self.chains.children(link))
        heat = max([heat, *(one.heat for one in after if one is not None)])
        if former is not None:
            heat = max(heat, former.heat)
            self._retire(former)
        entry = Entry(link, segment, offset, header.payload_bytes, header.tenant_tag, 0.0)
        self._entries[header.address] = entry
        segment.entries.add(entry)
        self._tenant_bytes[entry.tenant_tag] = self._tenant_bytes.get(entry.tenant_tag, 0) + entry.num_bytes
        self._lift(link, heat)
        self._remember_coldness(entry)
        self.on_presence(header.address, True)
        return entry

    def advance(self, num_uses: int) -> None:
        """Let time pass: uses and stores from now on weigh more than those before.

        Records that are added between two calls are of one time; were they not, each would have to lift all that lies
        before it.
        """
        self._weight *= self._growth**num_uses
        if self._weight > _MAX_WEIGHT:
            self._rescale()

    def move(self, entry: Entry, segment: Segment, offset: int) -> None:
        """Take note that the record was written again, there."""
        self._leave(entry)
        entry.segment, entry.offset = segment, offset
        segment.entries.add(entry)
        if entry.link.is_rooted:
            segment.heat += entry.heat

    def remove(self, entry: Entry) -> None:
        """Forget a record."""
        if not entry.is_live:
            return
        self._retire(entry)
        del self._entries[entry.link.address]
        self.chains.remove(DISK, entry.link.address)
        self.on_presence(entry.link.address, False)

    def remove_segment(self, segment: Segment) -> None:
        """Forget all records of a segment; what it takes counts until `forget_segment`."""
        for entry in list(segment.entries):
            self.num_evictions += 1
            self.remove(entry)

    def forget_segment(self, segment: Segment) -> None:
        """Take note that the segment's file is gone."""
        assert not segment.entries, "a segment goes after its records"
        if self.segments.get(segment.sequence) is segment:  # else all was read anew meanwhile
            del self.segments[segment.sequence]

    def touch(self, address: bytes) -> None:
        """Record one use of `address` and of all that lies before it."""
        link = self.chains.get(address)
        if link is None:
            return
        for one in self.chains.upwards(link):
            entry = self._entries.get(one.address)
            if entry is not None:
                self._warm(entry, self._weight)
        self.advance(1)

    def rooted(self, link: Link) -> None:
        """Take note that a link became reachable or no longer is."""
        entry = self._entries.get(link.address)
        if entry is None:
            return
        if link.is_rooted:
            entry.segment.heat += entry.heat
            self._lift(link, entry.heat)
        else:
            entry.segment.heat -= entry.heat

    def victim(self, open_segment: Segment | None) -> Segment | None:
        """Return the segment that is worth least for its bytes; None when all are open or being read."""
        candidates = [s for s in self.segments.values() if s is not open_segment and not s.num_readers]
        return min(candidates, key=lambda s: (_worth(s) / s.file_bytes, s.sequence), default=None)

    def survivors(self, segment: Segment, budget_bytes: int) -> list[Entry]:
        """Return the records of a segment to be written again before it goes: hot ones, fronts first."""
        reachable = sum(_worth(one) for one in self.segments.values())
        threshold = reachable / max(1, len(self._entries))
        needed: set[Entry] = set()
        by_index = sorted(segment.entries, key=lambda entry: entry.link.index, reverse=True)
        for entry in by_index:  # from the leaves
            for child in self.chains.children(entry.link):
                after = self._entries.get(child.address)
                if after is None or after.segment is not segment or after in needed:
                    needed.add(entry)
        ranked = [
            (entry.heat * (PARENT_FACTOR if entry in needed else 1.0), -entry.link.index, position, entry)
            for position, entry in enumerate(by_index)
            if entry.link.is_rooted
        ]
        chosen: list[Entry] = []
        for rank, _, _, entry in sorted(ranked, reverse=True):
            if rank <= threshold or entry.num_bytes > budget_bytes:
                break
            budget_bytes -= entry.num_bytes
            chosen.append(entry)
        return sorted(chosen, key=lambda entry: entry.offset)

    def set_limits(self, limits: Mapping[int, int]) -> None:
        """Say how many bytes of live records each tenant may have at most; who is not named has no limit."""
        self._limits = dict(limits)
        self._coldest = {tag: [] for tag in limits}
        for entry in self:
            self._remember_coldness(entry)
        for tag in limits:
            self.make_tenant_room(tag, 0)

    def make_tenant_room(self, tag: int, num_bytes: int) -> bool:
        """Forget the tenant's coldest records until so many bytes more are within its limit; False: they never are."""
        limit = self._limits.get(tag)
        if limit is None:
            return True
        if num_bytes > limit:
            return False
        heap = self._coldest[tag]
        while self._tenant_bytes.get(tag, 0) + num_bytes > limit:
            heat, _, _, entry = heapq.heappop(heap)
            if not entry.is_live:
                continue
            if entry.heat > heat:
                self._remember_coldness(entry)
                continue
            self.num_evictions += 1
            self.num_share_evictions += 1
            self.remove(entry)
        return True

    def hot(self, limit: int) -> list[Entry]:
        """Return the reachable records hotter than the average, hottest first, fronts before what follows on them."""
        average = sum(map(_worth, self.segments.values())) / max(1, len(self._entries))
        reachable = (entry for entry in self if entry.link.is_rooted and entry.heat > average)
        return heapq.nsmallest(limit, reachable, key=lambda entry: (-entry.heat, entry.link.index))

    def check_integrity(self) -> None:
        """Assert that entries, segments, tenants and chains agree."""
        by_segment = {entry for segment in self.segments.values() for entry in segment.entries}
        assert by_segment == set(self), "a record is in no segment or not found"
        tenants: dict[int, int] = {}
        for address, entry in self._entries.items():
            assert entry.is_live, "a dead record is found"
            assert entry.link.address == address, "a record lies under a foreign address"
            assert entry.link.tiers & DISK, "the chains do not know of a record"
            assert entry in entry.segment.entries, "a record is in another segment than it says"
            tenants[entry.tenant_tag] = tenants.get(entry.tenant_tag, 0) + entry.num_bytes
            for link in self.chains.upwards(entry.link) if entry.link.is_rooted else ():
                before = self._entries.get(link.address)
                assert before is None or before.heat >= entry.heat * (1 - 1e-9), "colder than what follows on it"
        assert tenants == {tag: size for tag, size in self._tenant_bytes.items() if size}, "tenants are miscounted"
        for segment in self.segments.values():
            heat = sum(entry.heat for entry in segment.entries if entry.link.is_rooted)
            assert abs(segment.heat - heat) <= 1e-6 * max(1.0, self._weight), "a segment's heat is miscounted"
            spans = sorted((entry.offset, entry.offset + entry.num_bytes) for entry in segment.entries)
            assert all(one[1] <= other[0] for one, other in pairwise(spans)), "records overlap"
            assert not spans or spans[-1][1] <= segment.file_bytes, "a record lies outside of its file"

    def _retire(self, entry: Entry) -> None:
        entry.is_live = False
        self._leave(entry)
        self._tenant_bytes[entry.tenant_tag] -= entry.num_bytes

    def _leave(self, entry: Entry) -> None:
        entry.segment.entries.discard(entry)
        if entry.link.is_rooted:
            entry.segment.heat -= entry.heat
        if not entry.segment.entries:
            entry.segment.heat = 0.0  # what rounding has left

    def _lift(self, link: Link, heat: float) -> None:
        """Make nothing on the way to the front colder than `heat`."""
        for one in self.chains.upwards(link):
            entry = self._entries.get(one.address)
            if entry is None:
                continue
            if entry.heat < heat:
                self._warm(entry, heat - entry.heat)
            elif one is not link:
                return

    def _warm(self, entry: Entry, heat: float) -> None:
        entry.heat += heat
        if entry.link.is_rooted:
            entry.segment.heat += heat

    def _remember_coldness(self, entry: Entry) -> None:
        heap = self._coldest.get(entry.tenant_tag)
        if heap is None:
            return
        if len(heap) > 2 * len(self._entries) + 64:
            heap[:] = [one for one in heap if one[3].is_live]
            heapq.heapify(heap)
        heapq.heappush(heap, (entry.heat, -entry.link.index, next(self._order), entry))

    def _rescale(self) -> None:
        for entry in self:
            entry.heat /= self._weight
        for segment in self.segments.values():
            segment.heat = sum(entry.heat for entry in segment.entries if entry.link.is_rooted)
        self._coldest = {tag: [] for tag in self._coldest}
        self._weight = 1.0
        for entry in self:
            self._remember_coldness(entry)


def _worth(segment: Segment) -> float:
    return max(0.0, segment.heat)
