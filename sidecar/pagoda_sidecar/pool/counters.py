"""What the pool counts, whoever talks to its nodes."""

from pagoda_protocol import metrics as names
from pagoda_runtime.metrics import Instrument, Metrics
from pagoda_sidecar.pool.operations import NodeOperations
from pagoda_sidecar.pool.states import NodeStates


class PoolCounters:
    """Made once for each registry."""

    def __init__(self, metrics: Metrics, integrity_failures: Instrument | None = None) -> None:
        """`integrity_failures` is the counter shared with other tiers; made here if None."""
        self.operations = NodeOperations(
            metrics.counter(
                names.POOL_OPERATIONS, "Operations on pool nodes, per record.", ("node", "operation", "outcome")
            )
        )
        self.states = NodeStates(
            metrics.gauge(names.POOL_NODE_UP, "Whether a pool node answered when last asked.", ("node",))
        )
        self.probes_saved = metrics.counter(
            names.POOL_PROBES_SAVED, "Records the pool was not asked for, by reason.", ("reason",)
        )
        self.integrity_failures = integrity_failures or metrics.counter(
            names.INTEGRITY_FAILURES, "Records that were not what they said, and were dropped.", ("tier", "reason")
        )
