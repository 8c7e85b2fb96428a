"""What one pod says it holds: digest → (tokens, tier, heat). Pure, bounded.

Invariants: every row was published under the epoch that its tier has now, by the one stream that fills this table; a
tier without an epoch has no rows; there are never more rows than `capacity`. Over capacity the rows go that were said
longest ago; a row with heat is passed over once and its heat halved.
"""

import itertools
from collections.abc import Mapping

from pagoda_router.messages import DEVICE, DISK, TIERS, Epoch, Head, Row, Rows
from pagoda_router.requests import Points
from pagoda_router.work import NO_MATCH, Match

_SHRUNK_PERCENT = 90  # of the capacity, after a shrink


class HintTable:
    """The rows of one hint stream, from its head on."""

    def __init__(self, head: Head, capacity: int) -> None:
        assert capacity > 0
        self._epochs: dict[str, str | None] = dict(head.epochs)
        self._capacity = capacity
        self._rows: dict[bytes, Row] = {}  # in the order in which they were last said

    def __len__(self) -> int:
        return len(self._rows)

    def apply(self, message: Rows | Epoch) -> None:
        """Change the table as a line of the stream says."""
        if isinstance(message, Epoch):
            self._void(message.tier, message.epoch)
            return
        for digest in message.drop:
            self._rows.pop(digest, None)
        for digest, row in message.set.items():
            self._rows.pop(digest, None)
            # A row of a tier that holds nothing is said too early or too late; it is worth nothing either way.
            if row[0] > 0 and self._epochs[row[1]] is not None:
                self._rows[digest] = row
                if len(self._rows) > self._capacity:
                    self._shrink()

    def resize(self, capacity: int) -> None:
        """Set how many rows may be kept."""
        assert capacity > 0
        self._capacity = capacity
        if len(self._rows) > capacity:
            self._shrink()

    def match(self, points: Points) -> Match:
        """Return the longest known prefix among a request's points, and how much of it lies in which tier.

        A row says that all before its end is in its tier or a better one.
        """
        tokens = position = 0
        above_disk = 0  # tokens on the device or in RAM
        for digest, at in reversed(points):
            row = self._rows.get(digest)
            if row is None:
                continue
            if tokens == 0:
                tokens, position = row[0], at
            if row[1] != DISK and above_disk == 0:
                above_disk = min(row[0], tokens)
            if row[1] == DEVICE:
                return Match(tokens, min(row[0], above_disk), position, tokens - above_disk)
        return Match(tokens, 0, position, tokens - above_disk) if tokens else NO_MATCH

    def rows(self) -> Mapping[bytes, Row]:
        """Return a copy of all rows, for tests and debugging."""
        return dict(self._rows)

    def check_integrity(self) -> None:
        """Assert the invariants at the file's head."""
        assert len(self._rows) <= self._capacity
        for tier in TIERS:
            if self._epochs[tier] is None:
                assert not any(row[1] == tier for row in self._rows.values())

    def _void(self, tier: str, epoch: str | None) -> None:
        self._rows = {digest: row for digest, row in self._rows.items() if row[1] != tier}
        self._epochs[tier] = epoch

    def _shrink(self) -> None:
        """Make room for a batch of rows: one by one would walk over the holes left at the dictionary's front."""
        num_surplus = len(self._rows) - self._capacity * _SHRUNK_PERCENT // 100
        cold: list[bytes] = []
        hot: dict[bytes, Row] = {}
        for digest, (tokens, tier, heat) in self._rows.items():
            if len(cold) == num_surplus:
                break
            if heat >= 2:
                hot[digest] = (tokens, tier, heat / 2)
            else:
                cold.append(digest)
        for digest in (*cold, *hot):
            del self._rows[digest]
        self._rows.update(hot)
        for digest in list(itertools.islice(self._rows, num_surplus - len(cold))):  # all are hot: then by age alone
            del self._rows[digest]
