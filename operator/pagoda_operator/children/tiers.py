"""Which tiers of a pool the operator runs itself."""

from pagoda_protocol.pool.spec import InferencePool, ManagedPool


def managed_of(pool: InferencePool) -> ManagedPool | None:
    """Return the memcached nodes that are run for the pool."""
    return pool.cache.pool if isinstance(pool.cache.pool, ManagedPool) else None
