"""Reading from a node: probe and fetch. Each exchange runs on a connection lent for it alone.

Commands are sent all at once and answered in order, misses silently; every answer carries the opaque token of its
question, and each token is taken off the list of open questions before a byte of its value is received. So an answer
that comes twice, late or for somebody else never reaches memory: it is NodeGarbled, and the connection is closed.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pagoda_protocol.records import RECORD_HEADER_BYTES, RecordError, RecordHeader
from pagoda_sidecar.pool import items, keys, meta
from pagoda_sidecar.pool.connection import Connection
from pagoda_sidecar.pool.errors import NodeGarbled
from pagoda_sidecar.pool.meta import ProtocolError, Response, Sink
from pagoda_sidecar.pool.pace import Pace

# Where a value goes that nobody wants (never read): the connection stays in step, so that the record can be dropped.
_WASTE = memoryview(bytearray(1 << 16))

_Question = TypeVar("_Question")
OnReady = Callable[[int, RecordHeader], None]


@dataclass
class Wanted:
    """One record that a fetch asks for, and what became of it."""

    index: int
    address: bytes
    destination: memoryview
    outcome: str | None = None  # hit, miss, corrupt, torn; None while undecided
    reason: str | None = None  # why it is corrupt, a metric label
    cas: int = 0
    num_payload_bytes: int | None = None  # that follow the header in the item; None for a split record
    head: bytearray = field(default_factory=lambda: bytearray(RECORD_HEADER_BYTES))
    descriptor: bytearray = field(default_factory=lambda: bytearray(items.DESCRIPTOR_BYTES))

    def sink(self, response: Response) -> Sink:
        """Return where the value of `response` belongs; one that cannot be ours is wasted and remembered as such."""
        size = response.size or 0
        self.cas = response.number(b"c")
        is_split = response.number(b"f") == items.FLAG_SPLIT
        rest = size - RECORD_HEADER_BYTES
        if rest < 0 or rest > len(self.destination) or (is_split and rest != items.DESCRIPTOR_BYTES):
            self.reason = "length"
            return _waste(size)
        if is_split:
            return memoryview(self.head), memoryview(self.descriptor)
        self.num_payload_bytes = rest
        return memoryview(self.head), self.destination[:rest]


async def probe(connection: Connection, wanted_keys: Sequence[bytes], pace: Pace) -> list[bool]:
    """Say for each key whether the node holds it, without touching the LRU."""
    questions = dict(zip(connection.opaques(len(wanted_keys)), range(len(wanted_keys)), strict=True))
    found = [False] * len(wanted_keys)

    def on_answer(response: Response) -> None:
        _expect(response, b"HD")
        found[_take(questions, response)] = True

    connection.begin(0)
    await connection.send([b"".join(map(meta.probe_command, wanted_keys, questions)) + meta.END_OF_BATCH])
    await _answers(connection, on_answer)
    latency, elapsed = connection.end()
    pace.observe(latency, elapsed, 0)
    return found


async def ping(connection: Connection) -> None:
    """Find out whether the node answers."""
    connection.begin(0)
    await connection.send([meta.END_OF_BATCH])
    await _answers(connection, lambda response: _expect(response, b"MN"))
    connection.end()


async def fetch(
    connection: Connection, batch: Sequence[Wanted], namespace: bytes, on_ready: OnReady, pace: Pace
) -> None:
    """Read the records of `batch` into their destinations; call `on_ready` for each as soon as it is verified.

    When it raises, those not yet decided have no outcome. What must not be found again is deleted, if it still is the
    version that was read.
    """
    split: list[tuple[Wanted, RecordHeader]] = []
    questions = dict(zip(connection.opaques(len(batch)), batch, strict=True))
    arriving: deque[Wanted] = deque()  # the next value may begin before the last one is looked at
    num_bytes = 0

    def sink_for(response: Response) -> Sink:
        arriving.append(_take(questions, response))
        return arriving[-1].sink(response)

    def on_value(response: Response) -> None:
        nonlocal num_bytes
        _expect(response, b"VA")
        num_bytes += response.size or 0
        wanted = arriving.popleft()
        header = _check(wanted, namespace)
        if header is not None and wanted.num_payload_bytes is None:
            split.append((wanted, header))
        elif header is not None:
            _finish(wanted, header, on_ready)

    connection.begin(sum(len(wanted.destination) for wanted in batch), sink_for)
    record_keys = (keys.record_key(namespace, wanted.address) for wanted in batch)
    await connection.send([b"".join(map(meta.get_command, record_keys, questions)) + meta.END_OF_BATCH])
    await _answers(connection, on_value)
    latency, elapsed = connection.end()
    pace.observe(latency, elapsed, num_bytes)
    for wanted in questions.values():
        wanted.outcome = "miss"
    for wanted, header in split:
        await _fetch_parts(connection, wanted, header, namespace, on_ready)
    await _drop(connection, [wanted for wanted in batch if wanted.outcome in ("corrupt", "torn")], namespace)


async def _fetch_parts(
    connection: Connection, wanted: Wanted, header: RecordHeader, namespace: bytes, on_ready: OnReady
) -> None:
    """Read the parts of a split record, whose head has been read, into their places."""
    try:
        part_bytes = items.unpack_descriptor(wanted.descriptor, header.payload_bytes)
    except RecordError as error:
        wanted.outcome, wanted.reason = "corrupt", error.reason
        return
    ranges = list(items.part_ranges(header.payload_bytes, part_bytes))
    questions = dict(zip(connection.opaques(len(ranges)), ranges, strict=True))

    def sink_for(response: Response) -> Sink:
        start, end = _take(questions, response)
        if response.size != end - start:
            wanted.reason = "length"
            return _waste(response.size or 0)
        return (wanted.destination[start:end],)

    part_keys = (keys.part_key(namespace, wanted.address, header.xxh3, index) for index in range(len(ranges)))
    connection.begin(header.payload_bytes, sink_for)
    await connection.send([b"".join(map(meta.get_command, part_keys, questions)) + meta.END_OF_BATCH])
    await _answers(connection, lambda response: _expect(response, b"VA"))
    connection.end()
    if wanted.reason is not None:
        wanted.outcome = "corrupt"
    elif questions:
        wanted.outcome = "torn"  # the node evicted a part; the head goes too, or the record could not be stored again
    else:
        _finish(wanted, header, on_ready)


async def _drop(connection: Connection, dropped: Sequence[Wanted], namespace: bytes) -> None:
    if not dropped:
        return
    connection.begin(0)
    commands = (
        meta.delete_command(keys.record_key(namespace, wanted.address), opaque, wanted.cas)
        for wanted, opaque in zip(dropped, connection.opaques(len(dropped)), strict=True)
    )
    await connection.send([b"".join(commands) + meta.END_OF_BATCH])
    await _answers(connection, lambda response: _expect(response, b"EX"))  # rewritten meanwhile: not what we read
    connection.end()


def _check(wanted: Wanted, namespace: bytes) -> RecordHeader | None:
    """Return the header that has arrived, or decide that the record is corrupt."""
    try:
        if wanted.reason is not None:
            raise RecordError(wanted.reason)
        header = items.check_header(wanted.head, namespace, wanted.address)
        if wanted.num_payload_bytes not in (None, header.payload_bytes) or header.payload_bytes > len(
            wanted.destination
        ):
            raise RecordError("length")
    except RecordError as error:
        wanted.outcome, wanted.reason = "corrupt", error.reason
        return None
    return header


def _finish(wanted: Wanted, header: RecordHeader, on_ready: OnReady) -> None:
    """Verify the payload in its destination and hand it over."""
    try:
        items.check_payload(header, wanted.destination[: header.payload_bytes])
    except RecordError as error:
        wanted.outcome, wanted.reason = "corrupt", error.reason
        return
    wanted.outcome = "hit"
    on_ready(wanted.index, header)


async def _answers(connection: Connection, on_answer: Callable[[Response], None]) -> None:
    """Hand each answer to `on_answer` until the end of the batch."""
    while True:
        responses = await connection.receive()
        is_last = responses[-1].code == b"MN"
        try:
            for response in responses[:-1] if is_last else responses:
                on_answer(response)
        except ProtocolError as error:
            raise NodeGarbled(str(error)) from error
        if is_last:
            return


def _take(questions: dict[int, _Question], response: Response) -> _Question:
    """Take the question that `response` answers off the list.

    Raises:
        ProtocolError: it was not asked, or is answered already.
    """
    opaque = response.number(b"O")
    if opaque not in questions:
        raise ProtocolError(f"an answer to another question, O{opaque}")
    return questions.pop(opaque)


def _expect(response: Response, code: bytes) -> None:
    if response.code != code:
        raise ProtocolError(f"{response.code!r} instead of {code!r}")


def _waste(num_bytes: int) -> Sink:
    whole, rest = divmod(num_bytes, len(_WASTE))
    return [*[_WASTE] * whole, _WASTE[:rest]]
