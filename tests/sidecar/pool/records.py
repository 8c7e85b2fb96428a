"""Records, pools and counts for the tests of this folder."""

import contextlib
import random
from collections.abc import AsyncIterator, Iterable, Sequence

import xxhash

from pagoda_protocol.records import RecordHeader, pack_header
from pagoda_runtime.metrics import Metrics
from pagoda_sidecar.pool import Access, MemcachedPool, PoolCounters, PoolNode, PoolSettings, keys
from tests.support.memcached import Memcached

NAMESPACE = bytes(range(100, 132))
PAYLOAD_BYTES = 40_000
CANARY = 0xC5

# For tests in which no deadline should pass, however busy the machine.
PATIENT = PoolSettings(connect_seconds=10.0, operation_seconds=10.0, retry_seconds=0.1, max_retry_seconds=0.4)
# Short, so that one deadline can be told from two, and long enough for a busy machine.
FAST = PoolSettings(connect_seconds=1.0, operation_seconds=1.0, retry_seconds=0.1, max_retry_seconds=0.4)

Record = tuple[RecordHeader, memoryview]


def record(number: int, size: int = PAYLOAD_BYTES, namespace: bytes = NAMESPACE) -> Record:
    """Return the sealed record `number`, always the same bytes."""
    address = random.Random(number).randbytes(32)
    payload = random.Random(~number).randbytes(size)
    digest = xxhash.xxh3_128_digest(payload)
    return RecordHeader(namespace[:16], address, bytes(16), number, 16, size, 7, digest), memoryview(payload)


def records(count: int, size: int = PAYLOAD_BYTES) -> list[Record]:
    return [record(number, size) for number in range(count)]


@contextlib.asynccontextmanager
async def pool_over(
    nodes: Iterable[Memcached | str],
    settings: PoolSettings = PATIENT,
    access: Access = Access(),  # noqa: B008 - frozen
) -> AsyncIterator[tuple[MemcachedPool, Metrics]]:
    """Run a pool with the nodes named n0, n1, … and the tests' namespace."""
    metrics = Metrics()
    pool = MemcachedPool(named(*nodes), PoolCounters(metrics), settings)
    pool.set_access(access)
    pool.set_namespace(NAMESPACE)
    try:
        yield pool, metrics
    finally:
        await pool.close()


def named(*nodes: Memcached | str) -> tuple[PoolNode, ...]:
    addresses = [node if isinstance(node, str) else node.address for node in nodes]
    return tuple(PoolNode(f"n{index}", address) for index, address in enumerate(addresses))


async def store_all(pool: MemcachedPool, stored: Iterable[Record]) -> list[bool]:
    return [await pool.store(header, payload) for header, payload in stored]


async def fetch_all(pool: MemcachedPool, wanted: Sequence[Record]) -> list[int]:
    """Fetch into slots full of canaries; check what was reported bit by bit; return the indices that were."""
    slots = [bytearray([CANARY]) * len(payload) for _, payload in wanted]
    found: list[int] = []

    def on_ready(index: int, header: RecordHeader) -> None:
        assert header == wanted[index][0]
        assert slots[index] == wanted[index][1]
        found.append(index)

    await pool.fetch([header.address for header, _ in wanted], [memoryview(slot) for slot in slots], on_ready)
    assert len(set(found)) == len(found), "reported twice"
    return sorted(found)


def counts(metrics: Metrics, name: str, **labels: str) -> dict[str, float]:
    """Return the counter's values by outcome (or reason) where `labels` match, zeros left out."""
    found: dict[str, float] = {}
    for line in metrics.exposition().decode().splitlines():
        if line.startswith(f"{name}_total{{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
            key = "outcome" if "outcome=" in line else "reason"
            label = line.split(f'{key}="')[1].split('"')[0]
            found[label] = found.get(label, 0) + float(line.rsplit(" ", 1)[1])
    return {label: value for label, value in found.items() if value}


def operations(metrics: Metrics, operation: str) -> dict[str, float]:
    return counts(metrics, "pagoda_pool_operations", operation=operation)


def put_raw(node: Memcached, header: RecordHeader, value: bytes, flag: int = 0) -> None:
    """Write `value` under the key of the header's address, as a faulty or hostile neighbour might."""
    key = keys.record_key(NAMESPACE, header.address)
    assert node.command(b"ms %b %d F%d\r\n%b\r\n" % (key, len(value), flag, value)) == b"HD\r\n"


def raw_value(item: Record) -> bytes:
    return pack_header(item[0]) + bytes(item[1])
