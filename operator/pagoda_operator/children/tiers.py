"""Which tiers of a pool are there: blocks reach disk and pool through the RAM tier alone."""

from pagoda_protocol.pool.spec import Disk, InferencePool, ManagedPool


def disk_of(pool: InferencePool) -> Disk | None:
    """Return the disk tier that pods have."""
    return pool.cache.disk if pool.cache.ram_bytes else None


def managed_of(pool: InferencePool) -> ManagedPool | None:
    """Return the memcached nodes that are run for the pool."""
    managed = pool.cache.pool
    return managed if isinstance(managed, ManagedPool) and pool.cache.ram_bytes else None
