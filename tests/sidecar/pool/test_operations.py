"""What became of operations is shown for as long as somebody has the node."""

from collections.abc import Sequence

from pagoda_runtime.metrics import Metrics
from pagoda_sidecar.pool import MemcachedPool, PoolCounters, PoolNode
from tests.sidecar.pool.records import FAST, NAMESPACE, named, records
from tests.support.ports import free_port


def _shown(metrics: Metrics) -> list[bytes]:
    """Return the nodes that have series of operations."""
    lines = metrics.exposition().splitlines()
    return sorted(
        {line.split(b'"')[1] for line in lines if line.startswith(b"pagoda_pool_operations_") and b"{" in line}
    )


def _value(metrics: Metrics, node: str) -> list[bytes]:
    start = b'pagoda_pool_operations_total{node="%b"' % node.encode()
    return [line.split()[-1] for line in metrics.exposition().splitlines() if line.startswith(start)]


def _dead(count: int) -> tuple[PoolNode, ...]:
    return named(*(f"127.0.0.1:{free_port()}" for _ in range(count)))


async def _probe(pool: MemcachedPool) -> Sequence[bool]:
    return await pool.probe([header.address for header, _ in records(40, size=10)])


async def test_the_series_of_a_node_leave_with_it_and_those_of_others_stay() -> None:
    metrics = Metrics()
    nodes = _dead(3)
    pool = MemcachedPool(nodes, PoolCounters(metrics), FAST)
    pool.set_namespace(NAMESPACE)
    await _probe(pool)
    assert _shown(metrics) == [b"n0", b"n1", b"n2"]
    before = _value(metrics, "n1")
    moved = PoolNode("n1", f"127.0.0.1:{free_port()}")  # of the same name, elsewhere
    pool.set_nodes([moved, nodes[2]])
    assert _shown(metrics) == [b"n1", b"n2"]
    assert _value(metrics, "n1") == before, "a counter does not fall"
    await pool.close()
    assert _shown(metrics) == []


def test_what_ends_on_a_node_that_has_left_brings_no_series_back() -> None:
    metrics = Metrics()
    operations = PoolCounters(metrics).operations
    operations.leave("n", "nobody")
    operations.join("n", "asking")
    operations.join("n", "moving")
    operations.count("n", "fetch", "hit")
    operations.leave("n", "asking")
    operations.count("n", "fetch", "hit", 2)
    assert _value(metrics, "n") == [b"3.0"]
    operations.leave("n", "moving")
    operations.count("n", "fetch", "cancelled")
    assert _shown(metrics) == []
