"""Writing to a node: a batch of records on a connection lent for it alone, all sent, then all acknowledged, in order.

An answer carries the token of its question, except a SERVER_ERROR: memcached says no more than that it could not, and
has swallowed the value, so the connection stays in step.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pagoda_protocol.records import PROOF, RecordError, RecordHeader, pack_header
from pagoda_sidecar.pool import items, keys, meta
from pagoda_sidecar.pool.connection import Connection
from pagoda_sidecar.pool.errors import NodeGarbled
from pagoda_sidecar.pool.meta import Response

PROOF_SECONDS = 60  # so long memcached keeps the record of a proof at most


class Storing:
    """One record on its way to a node; `outcome` is `stored` or `exists` if good. Made inside the event loop."""

    def __init__(self, namespace: bytes, header: RecordHeader, payload: memoryview) -> None:
        self.namespace = namespace
        self.header = header
        self.payload = payload
        self.outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def seconds(self) -> int:
        """After how long the node is to forget it; 0: when it needs the place."""
        return PROOF_SECONDS if self.header.flags & PROOF else 0

    def decide(self, outcome: str) -> None:
        """Say what became of it; only the first word counts."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)

    def verify(self) -> bool:
        """Hold the payload against its header; decide that it is corrupt if it is."""
        try:
            items.check_payload(self.header, self.payload)
        except RecordError:
            self.decide("corrupt")
            return False
        return True


@dataclass
class _Value:
    """One item to be written; `decides` hears of its outcome."""

    key: bytes
    pieces: tuple[bytes | memoryview, ...]
    decides: Storing | None = None
    flag: int = items.FLAG_WHOLE
    add: bool = False
    seconds: int = 0


async def store(connection: Connection, batch: Sequence[Storing]) -> None:
    """Write the records of `batch`; each is decided when the node has acknowledged or refused it.

    A record above the node's item limit goes in parts. Its head is added only when every part is acknowledged, so a
    record that is found was whole once.
    """
    limit = connection.value_limit_bytes
    split = [storing for storing in batch if items.part_size(len(storing.payload), limit) is not None]
    whole = [storing for storing in batch if storing not in split] if split else batch
    if whole:
        await _store_values(connection, _whole_values(whole), sum(len(storing.payload) for storing in whole))
    for storing in split:
        if storing.verify():
            await _store_parts(connection, storing)


def _whole_values(batch: Sequence[Storing]) -> Iterator[_Value]:
    """Yield each record when it is verified: while one is, memcached takes in the one before it."""
    for storing in batch:
        if storing.verify():
            key = keys.record_key(storing.namespace, storing.header.address)
            yield _Value(key, (pack_header(storing.header), storing.payload), storing, seconds=storing.seconds)


async def _store_values(connection: Connection, values: Iterable[_Value], num_bytes: int) -> str:
    """Send all, then wait for all answers; return `stored`, or what became of the first that was not."""
    questions: deque[tuple[_Value, int]] = deque()
    connection.begin(num_bytes)
    for value in values:
        (opaque,) = connection.opaques(1)
        num_bytes = sum(map(len, value.pieces))
        command = meta.store_command(value.key, opaque, num_bytes, value.flag, add=value.add, seconds=value.seconds)
        await connection.send([command, *value.pieces, meta.END_OF_VALUE])
        questions.append((value, opaque))
    outcomes: list[str] = []
    while questions:
        for response in await connection.receive():
            if not questions:
                raise NodeGarbled("more answers than questions")
            value, opaque = questions.popleft()
            if response.code != b"SERVER_ERROR" and response.flags.get(b"O") != b"%d" % opaque:
                raise NodeGarbled("an answer to another question")
            outcomes.append(_store_outcome(response))
            if value.decides is not None:
                value.decides.decide(outcomes[-1])
    connection.end()
    return next((outcome for outcome in outcomes if outcome != "stored"), "stored")


async def _store_parts(connection: Connection, storing: Storing) -> None:
    namespace, header, payload = storing.namespace, storing.header, storing.payload
    part_bytes = items.part_size(len(payload), connection.value_limit_bytes)
    assert part_bytes is not None, "fits whole"
    outcome = await _store_values(
        connection,
        [
            _Value(
                keys.part_key(namespace, header.address, header.xxh3, index),
                (payload[start:end],),
                seconds=storing.seconds,
            )
            for index, (start, end) in enumerate(items.part_ranges(len(payload), part_bytes))
        ],
        len(payload),
    )
    if outcome == "stored":
        head = pack_header(header) + items.pack_descriptor(len(payload), part_bytes)
        key = keys.record_key(namespace, header.address)
        value = _Value(key, (head,), storing, items.FLAG_SPLIT, add=True, seconds=storing.seconds)
        await _store_values(connection, [value], 0)
    else:
        storing.decide(outcome)


def _store_outcome(response: Response) -> str:
    if response.code == b"HD":
        return "stored"
    if response.code == b"NS":
        return "exists"
    if response.code == b"SERVER_ERROR":  # memcached has swallowed the value and is in step
        text = b" ".join(response.words)
        return "full" if b"memory" in text else "too_large" if b"large" in text else "server_error"
    raise NodeGarbled(f"{response.code!r} to a store")
