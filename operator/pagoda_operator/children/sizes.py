"""What each container may use, from the spec and from what was measured (docs/lab.md, "what a pod's parts use").

Rules: every container has a limit, so the pod has one; memory and storage that will be used are requested in full, so
that a node has them; whatever writes to a volume is counted where Kubernetes counts it: memory-backed bytes against the
container that touches them first, disk-backed ones against the sum of the pod's limits.
"""

from dataclasses import dataclass

from pagoda_operator.children import quantities
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

# Measured, each with half as much again: 73 MiB when nothing is held, 1.3 KiB a block in RAM, 0.9 KiB a record on disk.
_SIDECAR_BYTES = 256 * MEBI  # with what is under way to disk and pool, and the digest table's 65,536 rows
_INDEX_BYTES_PER_BLOCK = 2048
_INDEX_BYTES_PER_RECORD = 1280
# The spec does not know the model. Few have less KV than this for a token: 24 layers of 2 heads of 64 in 16 bits.
_LEAST_TOKEN_BYTES = 12 * 1024
_CODEC_DIVISORS = {"Raw": 1, "Int8": 2, "Fp8": 2, "Int4": 4, "Nvfp4": 4}

_ROUTER_BYTES = 512 * MEBI  # its tables of hints are bounded at 100 MiB, whatever the traffic; bodies have at most 8
_MEMCACHED_BYTES = 96 * MEBI  # measured 10, beside what connections that are slow to read hold in the kernel
_MEMCACHED_PER_MEMORY = 64  # hash table, and what pages of items are rounded up to


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
    disk = pool.cache.disk
    block_bytes = _least_block_bytes(pool)
    num_blocks = pool.cache.ram_bytes // block_bytes
    num_records = disk.size_bytes // block_bytes if disk is not None else 0
    index_bytes = num_blocks * _INDEX_BYTES_PER_BLOCK + num_records * _INDEX_BYTES_PER_RECORD
    return Size(
        millicores=_SIDECAR_MILLICORES,
        memory_bytes=quantities.whole_mebi(volume_bytes(pool) + _SIDECAR_BYTES + index_bytes),
        storage_bytes=LOG_BYTES + local_disk_bytes(pool),
    )


def router() -> Size:
    """The same for every pool."""
    return Size(_ROUTER_MILLICORES, _ROUTER_BYTES, ROUTER_TMP_BYTES + LOG_BYTES)


def memcached(managed: ManagedPool) -> Size:
    """The memory for items, and what memcached takes beside it."""
    memory = managed.memory_per_replica_bytes
    overhead = _MEMCACHED_BYTES + memory // _MEMCACHED_PER_MEMORY
    return Size(_MEMCACHED_MILLICORES, quantities.whole_mebi(memory + overhead), LOG_BYTES)


def volume_bytes(pool: InferencePool) -> int:
    """Return the size of the memory-backed volume that engine and sidecar share."""
    return pool.cache.ram_bytes + ARENA_SLACK_BYTES


def local_disk_bytes(pool: InferencePool) -> int:
    """Return the room of the disk tier's volume where it is the node's own disk, 0 where it is not."""
    disk = pool.cache.disk
    return 0 if disk is None or disk.storage_class_name is not None else disk.size_bytes + DISK_SLACK_BYTES


def claimed_disk_bytes(size_bytes: int) -> int:
    """Return the size to claim for a disk tier: a file system keeps some of its device for itself."""
    return quantities.whole_mebi(size_bytes + size_bytes // 8 + DISK_SLACK_BYTES)


def _least_block_bytes(pool: InferencePool) -> int:
    """Return what a block takes below the device at least, so that it is known how many there may be."""
    return pool.engine.kv_cache.block_tokens * _LEAST_TOKEN_BYTES // _CODEC_DIVISORS[pool.cache.codec]
