"""The sidecar's instruments, made once."""

from pagoda_protocol import metrics as names
from pagoda_runtime.metrics import Metrics


class Counters:
    """All counters and gauges of a sidecar but those the pool keeps of its nodes."""

    def __init__(self, metrics: Metrics) -> None:
        self.integrity_failures = metrics.counter(
            names.INTEGRITY_FAILURES, "Records dropped because they failed verification.", ("tier", "reason")
        )
        self.lookups = metrics.counter(names.TIER_LOOKUPS, "Blocks looked up, by tier.", ("tier", "result"))
        self.evictions = metrics.counter(names.TIER_EVICTIONS, "Blocks evicted to make room.", ("tier",))
        self.share_evictions = metrics.counter(
            names.TIER_SHARE_EVICTIONS,
            "Of the evicted blocks those that a tenant at its share gave for its own.",
            ("tier",),
        )
        self.arena_allocated = metrics.gauge(
            names.ARENA_ALLOCATED_RATIO, "Part of the arena that is allocated, 0 to 1."
        )
        self.demotions = metrics.counter(names.TIER_DEMOTIONS, "Blocks on their way from RAM to disk.", ("outcome",))
        self.moves = metrics.counter(names.DISK_MOVES, "Records written again because they outlived their segment.")
        self.pushes_dropped = metrics.counter(
            names.POOL_PUSHES_DROPPED, "Blocks not pushed to the pool although they should be.", ("reason",)
        )
        self.blocks = metrics.gauge(names.TIER_BLOCKS, "Blocks in a tier.", ("tier", "state"))
        self.bytes = metrics.gauge(names.TIER_BYTES, "Size of a tier in bytes, tables included.", ("tier",))
        self.leases = metrics.gauge(names.LEASES, "Leases that are neither settled nor lapsed.")
        self.quarantined = metrics.gauge(names.QUARANTINED_SLOTS, "Slots nobody may reuse because one may touch them.")
        self.digest_rows = metrics.gauge(names.DIGEST_ROWS, "Rows published to routers.")
        self.attached = metrics.gauge(names.TIER_ATTACHED, "Whether an engine is attached.")
        self.attaches = metrics.counter(names.ATTACHES, "Attach calls by how they were answered.", ("result",))
        self.calls_refused = metrics.counter(names.CALLS_REFUSED, "Calls answered with an error.", ("call", "reason"))
        self.restarts = metrics.counter(names.WORKER_RESTARTS, "Times the supervisor had to start the worker anew.")

    def disk_damage(self, reason: str) -> None:
        """Count a record on disk that failed verification."""
        self.integrity_failures.add(1, tier="disk", reason=reason)
