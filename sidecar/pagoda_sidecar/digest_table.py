"""Digest → tokens and address, with heat: what this pod could tell a router, whether resident now or not.

Rows live in memory and, while there is an arena, in its digest table too, so that they survive a restart. Capacity is
fixed; when it is reached the coldest sixteenth goes at once, those that lead to nothing resident first.

Heat is a use count that halves every HALF_LIFE_SECONDS. It is stored as of the row's last use, so that nothing needs
to be updated while time passes.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from pagoda_sidecar.arena.layout import (
    DIGEST_ROW_BYTES,
    MAX_DIGEST_ROWS,
    StoredDigest,
    pack_digest_row,
    unpack_digest_row,
)

HALF_LIFE_SECONDS = 600.0
_EMPTY = bytes(DIGEST_ROW_BYTES)


class DigestTable:
    """See the head of this file. `clock` gives Unix seconds, because rows outlive the process."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.capacity = MAX_DIGEST_ROWS
        # Told of each digest that was evicted
        self.on_evicted: Callable[[bytes], None] = lambda digest: None
        self._clock = clock
        self._rows: dict[bytes, StoredDigest] = {}
        self._by_address: dict[bytes, set[bytes]] = {}
        self._storage: memoryview | None = None
        self._places: dict[bytes, int] = {}
        self._free_places: list[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, digest: bytes) -> StoredDigest | None:
        """Return the row of `digest`. Any thread."""
        return self._rows.get(digest)

    def digests(self) -> Iterable[bytes]:
        """Return all digests, in no order."""
        return self._rows.keys()

    def heats(self) -> list[tuple[bytes, float]]:
        """Return the address and the heat by now of each row."""
        now = int(self._clock())
        return [(row.address, decayed(row, now)) for row in self._rows.values()]

    def digests_of(self, address: bytes) -> frozenset[bytes]:
        """Return the digests whose last covered block is `address`."""
        return frozenset(self._by_address.get(address, ()))

    def record(self, digest: bytes, tokens: int, address: bytes, is_resident: Callable[[bytes], bool]) -> None:
        """Add or refresh a row, as one use of it. `is_resident` (of an address) decides who goes if room is needed."""
        now = int(self._clock())
        known = self._rows.get(digest)
        if known is None and len(self._rows) >= self.capacity:
            self._make_room(is_resident)
        heat = 1.0 if known is None else decayed(known, now) + 1.0
        self._put(StoredDigest(digest, address, tokens, heat, now))

    def touch(self, address: bytes) -> frozenset[bytes]:
        """Count a use of all rows that end at `address`; return their digests."""
        now = int(self._clock())
        digests = self.digests_of(address)
        for digest in digests:
            row = self._rows[digest]
            self._put(replace(row, heat=decayed(row, now) + 1.0, last_use=now))
        return digests

    def use_storage(self, storage: memoryview | None) -> None:
        """Keep rows in `storage` from now on (None: in memory alone), first taking over what it holds."""
        if self._storage is not None:
            self._storage.release()
        self._storage, self._places = storage, {}
        if storage is None:
            return
        self.capacity = len(storage) // DIGEST_ROW_BYTES
        for start in range(0, len(storage), DIGEST_ROW_BYTES):
            row = unpack_digest_row(storage[start : start + DIGEST_ROW_BYTES])
            if row is not None and math.isfinite(row.heat):
                self._remember(self._rows.get(row.digest, row))
        storage[:] = bytes(len(storage))
        self._free_places = list(range(self.capacity - 1, -1, -1))
        if len(self._rows) > self.capacity:
            self._evict(len(self._rows) - self.capacity, lambda address: False)
        for row in list(self._rows.values()):
            self._store(row)

    def _put(self, row: StoredDigest) -> None:
        known = self._rows.get(row.digest)
        if known is not None and known.address != row.address:
            self._forget_address(known)
        self._remember(row)
        self._store(row)

    def _remember(self, row: StoredDigest) -> None:
        self._rows[row.digest] = row
        self._by_address.setdefault(row.address, set()).add(row.digest)

    def _store(self, row: StoredDigest) -> None:
        if self._storage is None:
            return
        place = self._places.get(row.digest)
        if place is None:
            place = self._places[row.digest] = self._free_places.pop()
        self._write(place, pack_digest_row(row))

    def _write(self, place: int, data: bytes) -> None:
        if self._storage is not None:
            self._storage[place * DIGEST_ROW_BYTES : (place + 1) * DIGEST_ROW_BYTES] = data

    def _make_room(self, is_resident: Callable[[bytes], bool]) -> None:
        self._evict(max(1, self.capacity // 16), is_resident)

    def _evict(self, num_rows: int, is_resident: Callable[[bytes], bool]) -> None:
        now = int(self._clock())
        coldest = sorted(self._rows.values(), key=lambda row: (is_resident(row.address), decayed(row, now)))
        for row in coldest[:num_rows]:
            del self._rows[row.digest]
            self._forget_address(row)
            place = self._places.pop(row.digest, None)
            if place is not None:
                self._write(place, _EMPTY)
                self._free_places.append(place)
            self.on_evicted(row.digest)

    def _forget_address(self, row: StoredDigest) -> None:
        digests = self._by_address[row.address]
        digests.discard(row.digest)
        if not digests:
            del self._by_address[row.address]


def hotness(row: StoredDigest) -> float:
    """Return a number that is larger for a hotter row, at any one time: all heat fades alike."""
    return math.log2(max(row.heat, 1e-9)) + row.last_use / HALF_LIFE_SECONDS


def decayed(row: StoredDigest, now: int) -> float:
    """Return the heat of a row by `now`, in Unix seconds."""
    return row.heat * math.exp2(min(0, row.last_use - now) / HALF_LIFE_SECONDS)
