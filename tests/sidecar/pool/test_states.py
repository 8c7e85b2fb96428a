"""Whether a node is up: several say so, one shows it."""

from pagoda_runtime.metrics import Metrics
from pagoda_sidecar.pool import MemcachedPool, PoolCounters
from pagoda_sidecar.pool.states import NodeStates
from tests.sidecar.pool.records import FAST, NAMESPACE, named, records
from tests.support.memcached import needs_memcached, running_memcached
from tests.support.ports import free_port


def _made() -> tuple[NodeStates, Metrics]:
    metrics = Metrics()
    return PoolCounters(metrics).states, metrics


def _shown(metrics: Metrics) -> list[bytes]:
    return [line for line in metrics.exposition().splitlines() if line.startswith(b"pagoda_pool_node_up{")]


def test_a_node_is_up_when_all_who_asked_it_say_so() -> None:
    states, metrics = _made()
    states.say("n", "asking")
    states.say("n", "moving", "refused")
    states.say("n", "asking")
    assert _shown(metrics) == [b'pagoda_pool_node_up{node="n"} 0.0']
    states.say("n", "moving")
    assert _shown(metrics) == [b'pagoda_pool_node_up{node="n"} 1.0']


def test_who_leaves_takes_only_his_own_word_along() -> None:
    states, metrics = _made()
    states.take_back("n", "nobody")
    states.say("n", "old", "refused")
    states.say("n", "new")
    states.take_back("n", "old")
    assert _shown(metrics) == [b'pagoda_pool_node_up{node="n"} 1.0']
    states.take_back("n", "new")
    assert _shown(metrics) == []


def test_only_a_node_that_was_down_has_come_back() -> None:
    states, _ = _made()
    states.say("n", "asking")
    states.say("n", "asking")
    assert states.num_returns == 0
    states.say("n", "asking", "refused")
    states.say("n", "asking")
    assert states.num_returns == 1


@needs_memcached
async def test_the_gauge_of_a_node_outlives_its_former_place() -> None:
    """The loops of a PoolThread take a new list at different times."""
    metrics = Metrics()
    counters = PoolCounters(metrics)
    (header, _), *_ = records(1)
    with running_memcached() as node:
        asking = MemcachedPool(named(node), counters, FAST)
        moving = MemcachedPool(named(f"127.0.0.1:{free_port()}"), counters, FAST)
        for pool in (asking, moving):
            pool.set_namespace(NAMESPACE)
            await pool.probe([header.address])
        assert _shown(metrics) == [b'pagoda_pool_node_up{node="n0"} 0.0'], "one cannot work with it"
        moving.set_nodes(named(node))
        assert _shown(metrics) == [b'pagoda_pool_node_up{node="n0"} 1.0']
        for pool in (asking, moving):
            await pool.close()
    assert _shown(metrics) == []
