"""What alerts go by is what the status says, and nothing of pools that are gone."""

from pagoda_operator.pool_gauges import PoolGauges
from pagoda_runtime.metrics import Metrics


def condition(kind: str, status: str) -> dict[str, str]:
    return {"type": kind, "status": status}


def lines(metrics: Metrics) -> set[str]:
    return {line for line in metrics.exposition().decode().splitlines() if not line.startswith("#")}


def test_each_condition_of_a_pool_is_shown_as_it_is() -> None:
    metrics = Metrics()
    gauges = PoolGauges(metrics)
    gauges.show(
        "team", "chat", [condition("Ready", "True"), condition("Degraded", "False"), condition("PoolReady", "Unknown")]
    )
    assert lines(metrics) == {
        'pagoda_pool_condition{namespace="team",pool="chat",type="Ready"} 1.0',
        'pagoda_pool_condition{namespace="team",pool="chat",type="Degraded"} 0.0',
        'pagoda_pool_condition{namespace="team",pool="chat",type="PoolReady"} -1.0',
    }
    gauges.show("team", "chat", [condition("Ready", "False")])
    assert lines(metrics) == {'pagoda_pool_condition{namespace="team",pool="chat",type="Ready"} 0.0'}


def test_a_pool_that_is_gone_is_shown_no_more() -> None:
    metrics = Metrics()
    gauges = PoolGauges(metrics)
    gauges.show("team", "chat", [condition("Ready", "False")])
    gauges.show("other", "chat", [condition("Ready", "True")])
    gauges.forget("team", "chat")
    gauges.forget("team", "never-seen")
    assert lines(metrics) == {'pagoda_pool_condition{namespace="other",pool="chat",type="Ready"} 1.0'}
