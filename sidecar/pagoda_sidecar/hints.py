"""What routers may believe of this pod, and the lines that tell them.

    table (all rows) ──resident?──► published (one row a digest, its best tier) ──differences──► every subscriber

A row is published only while the block it ends at is resident: on the device as the engine reports, or in RAM or over
RAM and disk as our own indexes say. Changes are gathered and sent once per turn of the loop. A subscriber that reads
too slowly is ended, so that memory stays bounded; it connects anew and gets a snapshot.

Rules: no sockets here; `hint_stream` moves the lines.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pagoda_protocol.digests import DIGEST_VERSION
from pagoda_sidecar.digest_table import DigestTable

MAX_QUEUED_BYTES = 4 * 2**20
ROWS_PER_LINE = 256


@dataclass(frozen=True)
class Head:
    """What a stream's head says of the engine; a stream whose head is no longer true ends."""

    models: tuple[str, ...] = ()
    template_digest: str = ""
    block_tokens: int = 0


@dataclass(frozen=True)
class Row:
    """A published row."""

    tokens: int
    tier: str  # device | ram | disk
    heat: float


class Subscriber:
    """One reader's queue of lines, still without the sequence that its connection gives them."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.is_ended = False
        self._lines: deque[str] = deque()
        self._queued_bytes = 0
        self._changed = asyncio.Event()

    def push(self, line: str) -> None:
        """Queue a line, or end the stream when its reader is too far behind."""
        self._lines.append(line)
        self._queued_bytes += len(line)
        if self._queued_bytes > MAX_QUEUED_BYTES:
            self._lines.clear()
            self.is_ended = True
        self._changed.set()

    def end(self) -> None:
        """End the stream after the lines queued so far."""
        self.is_ended = True
        self._changed.set()

    async def lines(self, timeout_seconds: float) -> list[str]:
        """Return what is queued, waiting up to the timeout for something; empty when nothing came or it ended."""
        if not self._lines and not self.is_ended:
            self._changed.clear()
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._changed.wait()
            except TimeoutError:
                pass
        lines = list(self._lines)
        self._lines.clear()
        self._queued_bytes = 0
        return lines


class Hints:
    """See the head of this file. Lives in the control loop."""

    def __init__(
        self,
        table: DigestTable,
        is_in_ram: Callable[[bytes], bool],
        is_below: Callable[[bytes], bool] = lambda address: False,
    ) -> None:
        self._table = table
        self._is_in_ram = is_in_ram
        self._is_below = is_below  # whether RAM and disk together have it
        self._head = Head()
        self._epochs: dict[str, str | None] = {"device": None, "ram": None, "disk": None}
        self._device: set[bytes] = set()
        self._published: dict[bytes, Row] = {}
        self._dirty: set[bytes] = set()
        self._flush_handle: asyncio.Handle | None = None
        self._subscribers: set[Subscriber] = set()
        table.on_evicted = self._mark

    @property
    def num_published(self) -> int:
        """Rows that routers see."""
        return len(self._published)

    @property
    def epochs(self) -> dict[str, str | None]:
        """The epoch of each tier whose rows are published."""
        return dict(self._epochs)

    def published(self) -> dict[bytes, Row]:
        """Return a copy of what is published now: a millisecond or two for all rows there can be."""
        return self._published.copy()

    def engine_attached(self, head: Head, epoch: str) -> None:
        """A new device epoch begins, with nothing resident yet."""
        self._head = head
        self._set_device_epoch(epoch)
        for subscriber in self._subscribers:
            if subscriber.head != head:
                subscriber.end()

    def engine_detached(self) -> None:
        """Void the device rows; what lies in RAM as well follows at once."""
        self._set_device_epoch(None)

    def set_ram_epoch(self, epoch: str | None) -> None:
        """The arena was made, made anew or lost. Rows of its new index follow."""
        self._set_epoch("ram", epoch)

    def set_disk_epoch(self, epoch: str | None) -> None:
        """The disk tier went on or off. Rows of its index follow."""
        self._set_epoch("disk", epoch)

    def set_device(self, added: Iterable[bytes], removed: Iterable[bytes]) -> None:
        """Follow which blocks are on the device."""
        for address in added:
            self._device.add(address)
            self.mark_address(address)
        for address in removed:
            self._device.discard(address)
            self.mark_address(address)

    def record(self, digest: bytes, tokens: int, address: bytes) -> None:
        """Take a row an engine reported."""
        self._table.record(digest, tokens, address, self.is_resident)
        self._mark(digest)

    def touch(self, address: bytes) -> None:
        """Count a use of the rows that end at `address`."""
        self._mark_all(self._table.touch(address))

    def is_resident(self, address: bytes) -> bool:
        """Whether a row that ends at `address` may be published."""
        return self._tier_of(address) is not None

    def mark_address(self, address: bytes) -> None:
        """Look again at the rows that end at `address`: it came or went."""
        self._mark_all(self._table.digests_of(address))

    def report_load(self, values: dict[str, float]) -> None:
        """Pass on what the engine is busy with."""
        self._send("load", values)

    def subscribe(self) -> tuple[Subscriber, dict[str, Any], list[str]]:
        """Open a stream: its queue, its head (a JSON object) and the lines of the snapshot."""
        self.flush()
        subscriber = Subscriber(self._head)
        self._subscribers.add(subscriber)
        head = {
            "type": "head",
            "sequence": 0,
            "digest_version": DIGEST_VERSION,
            "models": list(self._head.models),
            "template_digest": self._head.template_digest,
            "block_tokens": self._head.block_tokens,
            "epochs": dict(self._epochs),
        }
        lines = list(_row_lines(self._published.items(), ()))
        return subscriber, head, [*lines, line("live", {})]

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Forget a stream."""
        self._subscribers.discard(subscriber)

    def close(self) -> None:
        """End every stream."""
        for subscriber in self._subscribers:
            subscriber.end()

    def flush(self) -> None:
        """Send what changed since the last time."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        changed: list[tuple[bytes, Row]] = []
        dropped: list[bytes] = []
        for digest in self._dirty:
            row = self._row(digest)
            if row is None:
                if self._published.pop(digest, None) is not None:
                    dropped.append(digest)
            elif self._published.get(digest) != row:
                self._published[digest] = row
                changed.append((digest, row))
        self._dirty.clear()
        for text in _row_lines(changed, dropped):
            self._broadcast(text)

    def _row(self, digest: bytes) -> Row | None:
        stored = self._table.get(digest)
        tier = None if stored is None else self._tier_of(stored.address)
        return None if stored is None or tier is None else Row(stored.tokens, tier, round(stored.heat, 2))

    def _tier_of(self, address: bytes) -> str | None:
        """Return the best tier in which the whole chain of `address` lies; `disk` may have its front in RAM."""
        if address in self._device:
            return "device"
        if self._is_in_ram(address):
            return "ram"
        return "disk" if self._is_below(address) else None

    def _set_epoch(self, tier: str, epoch: str | None) -> None:
        if self._epochs[tier] != epoch:
            self._begin_epoch(tier, epoch)
            self._mark_all(self._table.digests())

    def _set_device_epoch(self, epoch: str | None) -> None:
        was_on_device = self._device
        self._device = set()
        self._begin_epoch("device", epoch)
        for address in was_on_device:
            self.mark_address(address)
        self.flush()

    def _begin_epoch(self, tier: str, epoch: str | None) -> None:
        """Void the tier's rows on both sides without naming them; those that still hold are sent again by `flush`."""
        self._epochs[tier] = epoch
        for digest in [digest for digest, row in self._published.items() if row.tier == tier]:
            del self._published[digest]
            self._dirty.add(digest)
        self._send("epoch", {"tier": tier, "epoch": epoch})
        self._schedule()

    def _mark(self, digest: bytes) -> None:
        self._dirty.add(digest)
        self._schedule()

    def _mark_all(self, digests: Iterable[bytes]) -> None:
        for digest in digests:
            self._mark(digest)

    def _schedule(self) -> None:
        if self._flush_handle is None:
            self._flush_handle = asyncio.get_running_loop().call_soon(self.flush)

    def _send(self, kind: str, values: dict[str, Any]) -> None:
        self._broadcast(line(kind, values))

    def _broadcast(self, text: str) -> None:
        for subscriber in self._subscribers:
            subscriber.push(text)


def line(kind: str, values: dict[str, Any]) -> str:
    """Return a line with a hole for its sequence (see `numbered`)."""
    rest = json.dumps(values, separators=(",", ":"))[1:]
    return f'{{"type":"{kind}","sequence":\0{"," if values else ""}{rest}\n'


def numbered(text: str, sequence: int) -> bytes:
    """Return the line as it goes out."""
    return text.replace("\0", str(sequence), 1).encode()


def _row_lines(rows: Iterable[tuple[bytes, Row]], dropped: Iterable[bytes]) -> Iterator[str]:
    to_set = [[digest.hex(), row.tokens, row.tier, row.heat] for digest, row in rows]
    to_drop = [digest.hex() for digest in dropped]
    while to_set or to_drop:
        yield line("rows", {"set": to_set[:ROWS_PER_LINE], "drop": to_drop[:ROWS_PER_LINE]})
        to_set, to_drop = to_set[ROWS_PER_LINE:], to_drop[ROWS_PER_LINE:]
