"""What each container may use, from the spec and from what was measured (docs/lab.md, "what a pod's parts use").

Rules: every container has a limit, so the pod has one; memory and storage that will be used are requested in full, so
that a node has them; whatever writes to a volume is counted where Kubernetes counts it: memory-backed bytes against the
container that touches them first, disk-backed ones against the sum of the pod's limits.
"""

from dataclasses import dataclass

from pagoda_operator.children import quantities
from pagoda_operator.children.tiers import disk_of
from pagoda_protocol.pool.quantities import GIBI, MEBI
from pagoda_protocol.pool.spec import InferencePool, ManagedPool

ARENA_SLACK_BYTES = 16 * MEBI
"""What the shared volume holds beside the arena: socket, lock, a page here and there."""
SHARED_MEMORY_BYTES = GIBI
"""/dev/shm of an engine with several GPUs, through which torch's collectives exchange data."""
ENGINE_TMP_BYTES = GIBI
"""/tmp of an engine pod: kernels that are compiled at start."""
ROUTER_TMP_BYTES = 64 * MEBI
LOG_BYTES = 64 * MEBI
"""Logs of one container: the kubelet keeps five files of 10Mi, and rotates them late."""
DISK_SLACK_BYTES = 64 * MEBI
"""Beside the disk tier's cap: its folder, and a segment whose end was not yet counted when it was asked for."""

_ENGINE_MILLICORES = 1000  # where the spec says nothing: one thread
_SIDECAR_MILLICORES = 250
_ROUTER_MILLICORES = 250
_MEMCACHED_MILLICORES = 250

_SIDECAR_BYTES = 256 * MEBI
_SIDECAR_PER_RAM = 24  # a byte of index for so many of the RAM tier
_SIDECAR_PER_DISK = 96  # likewise of the disk tier
_ROUTER_BYTES = 512 * MEBI
_MEMCACHED_BYTES = 96 * MEBI
_MEMCACHED_PER_MEMORY = 32


@dataclass(frozen=True)
class Size:
    """What a container asks for and may use; no `max_millicores`: as much as the node has left."""

    millicores: int
    memory_bytes: int
    storage_bytes: int
    max_millicores: int | None = None
    num_gpus: int = 0

    def resources(self) -> dict[str, dict[str, str]]:
        """Return it as a container's `resources`; GPUs stand in limits alone, which are then requests too."""
        both = {
            "ephemeral-storage": quantities.memory(self.storage_bytes),
            "memory": quantities.memory(self.memory_bytes),
        }
        limits = dict(both)
        if self.max_millicores is not None:
            limits["cpu"] = quantities.cpu(self.max_millicores)
        if self.num_gpus:
            limits["nvidia.com/gpu"] = str(self.num_gpus)
        return {"limits": limits, "requests": {"cpu": quantities.cpu(self.millicores), **both}}


def engine(pool: InferencePool) -> Size:
    """What the spec says; /tmp of the pod is counted here."""
    resources = pool.engine.resources
    return Size(
        millicores=resources.millicores or _ENGINE_MILLICORES,
        memory_bytes=resources.memory_bytes,
        storage_bytes=ENGINE_TMP_BYTES + LOG_BYTES,
        max_millicores=resources.millicores,
        num_gpus=resources.num_gpus,
    )


def engine_threads(pool: InferencePool) -> int:
    """Return how many threads an engine computes with: the cores it has for itself."""
    return max(1, (pool.engine.resources.millicores or _ENGINE_MILLICORES) // 1000)


def sidecar(pool: InferencePool) -> Size:
    """The arena, which the sidecar touches first, and what it takes to know what lies there and on disk."""
    disk = disk_of(pool)
    disk_bytes = disk.size_bytes if disk is not None else 0
    overhead = _SIDECAR_BYTES + pool.cache.ram_bytes // _SIDECAR_PER_RAM + disk_bytes // _SIDECAR_PER_DISK
    return Size(
        millicores=_SIDECAR_MILLICORES,
        memory_bytes=quantities.whole_mebi(volume_bytes(pool) + overhead),
        storage_bytes=LOG_BYTES + local_disk_bytes(pool),
    )


def router() -> Size:
    """Its table of prefixes has a fixed size, whatever the traffic."""
    return Size(_ROUTER_MILLICORES, _ROUTER_BYTES, ROUTER_TMP_BYTES + LOG_BYTES)


def memcached(managed: ManagedPool) -> Size:
    """The memory for items, and what memcached takes beside it: buffers, hash table, pages that classes keep."""
    memory = managed.memory_per_replica_bytes
    overhead = _MEMCACHED_BYTES + memory // _MEMCACHED_PER_MEMORY
    return Size(_MEMCACHED_MILLICORES, quantities.whole_mebi(memory + overhead), LOG_BYTES)


def volume_bytes(pool: InferencePool) -> int:
    """Return the size of the memory-backed volume that engine and sidecar share."""
    return pool.cache.ram_bytes + ARENA_SLACK_BYTES


def local_disk_bytes(pool: InferencePool) -> int:
    """Return the room of the disk tier's volume where it is the node's own disk, 0 where it is not."""
    disk = disk_of(pool)
    return 0 if disk is None or disk.storage_class_name is not None else disk.size_bytes + DISK_SLACK_BYTES


def claimed_disk_bytes(size_bytes: int) -> int:
    """Return the size to claim for a disk tier: a file system keeps some of its device for itself."""
    return quantities.whole_mebi(size_bytes + size_bytes // 8 + DISK_SLACK_BYTES)
