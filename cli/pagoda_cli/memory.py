"""Whether the tiers of a pool fit into this machine's memory, and which numbers to change where they do not.

An engine counts with its memory limit: what is needed only at the worst moment is needed. The arena and memcached
come on top, because both are filled sooner or later.
"""

from dataclasses import dataclass

from pagoda_cli.machine import Machine
from pagoda_cli.plan import num_managed_nodes
from pagoda_protocol.pool.quantities import MEBI, format_bytes, short_bytes
from pagoda_protocol.pool.spec import InferencePool, ManagedPool

ARENA_SLACK_BYTES = 16 * MEBI
"""What a volume holds beside the arena (as the operator's sizeLimit)."""

_KV_MEMORY = "spec.engine.kvCache.memory"
_MEMORY_LIMIT = "spec.engine.resources.limits.memory"


@dataclass(frozen=True)
class Need:
    """The memory that `count` programs of a kind need, and the fields that say so."""

    noun: str
    """What `count` of them are called."""
    count: int
    count_path: str
    each_bytes: int
    each_path: str

    @property
    def bytes(self) -> int:
        """The memory of all of them."""
        return self.count * self.each_bytes


def arena_bytes(pool: InferencePool) -> int:
    """Return the room in memory-backed files that the volumes of all pods take."""
    return pool.replicas * (pool.cache.ram_bytes + ARENA_SLACK_BYTES) if pool.cache.ram_bytes else 0


def memory_needs(pool: InferencePool, has_memcached: bool) -> list[Need]:
    """Return what the pool's programs need here."""
    limit = pool.engine.resources.memory_bytes
    needs = [Need(_plural("engine", pool.replicas), pool.replicas, "spec.replicas", limit, _MEMORY_LIMIT)]
    if pool.engine.resources.num_gpus:  # the limit then leaves out the KV cache, which here is in this memory
        kv_bytes = pool.engine.kv_cache.memory_bytes
        needs.append(Need(_plural("KV cache", pool.replicas), pool.replicas, "spec.replicas", kv_bytes, _KV_MEMORY))
    if pool.cache.ram_bytes:
        needs.append(
            Need(
                _plural("RAM tier", pool.replicas),
                pool.replicas,
                "spec.replicas",
                pool.cache.ram_bytes,
                "spec.cache.ram.size",
            )
        )
    managed = pool.cache.pool
    num_nodes = num_managed_nodes(pool, has_memcached)
    if isinstance(managed, ManagedPool) and num_nodes:
        path = "spec.cache.pool.managed"
        each = managed.memory_per_replica_bytes
        needs.append(Need("memcached", num_nodes, f"{path}.replicas", each, f"{path}.memoryPerReplica"))
    return needs


def memory_problems(pool: InferencePool, machine: Machine) -> list[str]:
    """Return `path: what is wrong; what would be right` for what does not fit."""
    offers = [(machine.available_bytes, "is available"), (machine.group_available_bytes, "its control group allows")]
    available, words = min(((size, words) for size, words in offers if size is not None), default=(None, ""))
    needs = memory_needs(pool, machine.memcached is not None)
    total = sum(need.bytes for need in needs)
    if available is None or total <= available:
        return []
    sums = " + ".join(f"{need.count} {need.noun} × {format_bytes(need.each_bytes)}" for need in needs)
    what = f"{sums} = {short_bytes(total)} of memory, more than the {short_bytes(available)} that {words}"
    return [f"{needs[0].each_path}: {what}; lower {_or(_paths(needs))}"]


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"


def _paths(needs: list[Need]) -> list[str]:
    paths = [need.each_path for need in needs] + [need.count_path for need in needs if need.count > 1]
    return list(dict.fromkeys(paths))


def _or(words: list[str]) -> str:
    return " or ".join(([", ".join(words[:-1])] if len(words) > 1 else []) + words[-1:])
