"""The torch half of a pod, as frozen data, and the parser of `spec.engine`."""

from dataclasses import dataclass

from pagoda_protocol.pool.pod_template import PodTemplate, read_pod_template
from pagoda_protocol.pool.quantities import GIBI, MEBI
from pagoda_protocol.pool.reader import Reader, choice, count, integer, millicores, size
from pagoda_protocol.pool.texts import IMAGE, MAX_SIZE, MODEST_SIZE

__all__ = ["Engine", "KvCache", "Limits", "Resources", "Rollout", "read_engine"]


@dataclass(frozen=True)
class Resources:
    """What the engine's container may use at most."""

    memory_bytes: int
    millicores: int | None
    num_gpus: int


@dataclass(frozen=True)
class KvCache:
    """The device tier."""

    memory_bytes: int
    block_tokens: int
    dtype: str
    """Auto | Float32 | BFloat16"""


@dataclass(frozen=True)
class Limits:
    """What one engine takes on at once."""

    max_model_tokens: int
    """Prompt and answer of one request together."""
    max_batch_tokens: int
    """Tokens computed in one step; a long prompt is cut into chunks of it."""
    max_sequences: int


@dataclass(frozen=True)
class Rollout:
    """How many pods a rollout may start above, and stop below, the number that was asked for."""

    max_surge: int | None
    max_unavailable: int | None

    def numbers(self, num_gpus: int, replicas: int) -> tuple[int, int]:
        """Return surge and unavailable, never both 0, with what the spec leaves open filled in.

        A pod above the number needs a GPU of its own, which may not be there: it would be Pending for ever. So several
        pods with GPUs make room first; all others start the new pod first.
        """
        surge, unavailable = self.max_surge, self.max_unavailable
        if surge is None and unavailable is None:
            return (0, 1) if num_gpus and replicas > 1 else (1, 0)
        if surge is None:
            return (0 if unavailable else 1), unavailable or 0
        return surge, unavailable if unavailable is not None else (0 if surge else 1)


@dataclass(frozen=True)
class Engine:
    """The torch half of a pod."""

    image: str | None
    resources: Resources
    kv_cache: KvCache
    limits: Limits
    startup_seconds: int
    rollout: Rollout
    pod_template: PodTemplate


def read_engine(engine: Reader) -> Engine:
    """Read `spec.engine`."""
    return Engine(
        image=engine.optional("image", IMAGE, None),
        resources=engine.child("resources", lambda resources: resources.child("limits", _resources)),
        kv_cache=engine.child("kvCache", _kv_cache),
        limits=engine.child("limits", _limits),
        startup_seconds=engine.optional("startupSeconds", integer(1, 86400), 1800),
        rollout=engine.child("rollout", _rollout),
        pod_template=engine.child("podTemplate", read_pod_template),
    )


def _resources(limits: Reader) -> Resources:
    return Resources(
        memory_bytes=limits.required("memory", MODEST_SIZE, 'give what an engine may use, such as "4Gi"'),
        millicores=limits.optional("cpu", millicores, None),
        num_gpus=limits.optional("nvidia.com/gpu", count(0, 16), 0),
    )


def _kv_cache(kv_cache: Reader) -> KvCache:
    return KvCache(
        memory_bytes=kv_cache.optional("memory", size(MEBI, MAX_SIZE), GIBI),
        block_tokens=kv_cache.optional("blockTokens", choice(8, 16, 32, 64, 128), 16),
        dtype=kv_cache.optional("dtype", choice("Auto", "Float32", "BFloat16"), "Auto"),
    )


def _limits(limits: Reader) -> Limits:
    return Limits(
        max_model_tokens=limits.optional("maxModelTokens", integer(1, 2**24), 8192),
        max_batch_tokens=limits.optional("maxBatchTokens", integer(1, 2**20), 2048),
        max_sequences=limits.optional("maxSequences", integer(1, 4096), 64),
    )


def _rollout(rollout: Reader) -> Rollout:
    read = Rollout(
        max_surge=rollout.optional("maxSurge", integer(0, 1000), None),
        max_unavailable=rollout.optional("maxUnavailable", integer(0, 1000), None),
    )
    if read.max_surge == 0 and read.max_unavailable == 0:
        rollout.problems.add(
            f"{rollout.path}.maxUnavailable", "is 0 beside maxSurge 0: no pod could ever be exchanged; raise one"
        )
    return read
