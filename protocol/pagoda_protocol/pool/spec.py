"""The InferencePool as frozen data, and its parser.

`parse_pool` takes the mapping of a manifest (from YAML or from the API server) and either returns a pool in which every
default is filled in, every size is bytes and every rule holds, or raises SpecError with all that is wrong. Fields whose
feature is not built yet are unknown here; the schema grows with its features.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pagoda_protocol.live import MAX_PREFIX_CHARACTERS, MAX_SHARED_PREFIXES
from pagoda_protocol.pool.quantities import GIBI, MEBI, format_bytes
from pagoda_protocol.pool.reader import (
    Problems,
    Reader,
    SpecError,
    choice,
    count,
    integer,
    millicores,
    size,
    text,
)
from pagoda_protocol.records import CODECS

__all__ = [
    "API_VERSION", "KIND", "MAX_NAME_LENGTH", "Cache", "Disk", "Engine", "ExternalPool", "InferencePool", "KvCache",
    "Limits", "LocalPath", "ManagedPool", "Model", "PythonPackage", "Resources", "Routing", "SpecError", "Tenancy",
    "parse_pool",
]  # fmt: skip

API_VERSION = "pagoda-kv.io/v1alpha1"
KIND = "InferencePool"
MAX_NAME_LENGTH = 40  # children add at most 12 characters, and all of them must fit in a label


@dataclass(frozen=True)
class PythonPackage:
    """Weights shipped in an installed distribution."""

    name: str


@dataclass(frozen=True)
class LocalPath:
    """Weights in a folder or file that is already there, by absolute path."""

    path: str


@dataclass(frozen=True)
class Model:
    """What is served, and under which name."""

    name: str
    """What clients put in "model"."""
    source: PythonPackage | LocalPath


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
class Engine:
    """The torch half of a pod."""

    image: str | None
    resources: Resources
    kv_cache: KvCache
    limits: Limits
    startup_seconds: int


@dataclass(frozen=True)
class ManagedPool:
    """memcached nodes that are started for this pool."""

    replicas: int
    memory_per_replica_bytes: int


@dataclass(frozen=True)
class ExternalPool:
    """memcached nodes that somebody else runs, as host:port."""

    addresses: tuple[str, ...]
    tls_secret_name: str | None = None
    """The Secret with `ca.crt` and, for a client certificate, `tls.crt` and `tls.key`; None: no TLS."""
    auth_secret_name: str | None = None
    """The Secret with `username` and `password`; None: the nodes ask for none."""


@dataclass(frozen=True)
class Disk:
    """The tier on the node's disk."""

    size_bytes: int
    storage_class_name: str | None


@dataclass(frozen=True)
class Cache:
    """The tiers below the device."""

    codec: str
    """Raw | Int8 | Int4 | Fp8 | Nvfp4: how KV is encoded below the device."""
    ram_bytes: int
    """0: no RAM tier."""
    disk: Disk | None
    idle_seconds: int
    """A session that nobody touched for so long is idle."""
    pool: ManagedPool | ExternalPool | None
    secret_name: str | None
    """The Secret that holds the pool secret; None: one is made."""


@dataclass(frozen=True)
class Routing:
    """How requests find a pod."""

    policy: str
    """CacheAware | LeastLoaded | RoundRobin"""
    replicas: int


@dataclass(frozen=True)
class Tenancy:
    """Who may call."""

    api_keys_secret_name: str | None
    """The Secret that holds tenants.json; None: no key is asked for."""
    shared_prefixes: tuple[str, ...]
    """Public texts whose KV all tenants share."""


@dataclass(frozen=True)
class InferencePool:
    """One pool, complete and consistent."""

    name: str
    model: Model
    replicas: int
    engine: Engine
    cache: Cache
    routing: Routing
    tenancy: Tenancy
    drain_seconds: int


def parse_pool(manifest: object) -> InferencePool:
    """Read a manifest.

    Raises:
        SpecError: with every problem found, each as `path: what is wrong; what would be right`.
    """
    problems = Problems()
    root = Reader(manifest, "", problems)
    if not root.is_mapping:
        problems.raise_if_any()
    root.required("apiVersion", choice(API_VERSION), f"write apiVersion: {API_VERSION}")
    root.required("kind", choice(KIND), f"write kind: {KIND}")
    name = root.child("metadata", _name)
    pool = root.child("spec", lambda spec: _pool(name, spec))
    root.ignore("status")
    root.refuse_unknown()
    _check_memory(pool, problems)
    _check_block_tokens(pool, problems)
    _check_external_secret(pool, problems)
    problems.raise_if_any()
    return pool


def _name(metadata: Reader) -> str:
    name = metadata.required("name", _POOL_NAME, "name the pool")
    metadata.ignore_others()
    return name


def _pool(name: str, spec: Reader) -> InferencePool:
    return InferencePool(
        name=name,
        model=spec.child("model", lambda model: _model(name, model)),
        replicas=spec.optional("replicas", integer(1, 1000), 1),
        engine=spec.child("engine", _engine),
        cache=spec.child("cache", _cache),
        routing=spec.child("routing", _routing),
        tenancy=spec.child("tenancy", _tenancy),
        drain_seconds=spec.optional("drainSeconds", integer(0, 3600), 120),
    )


def _model(pool_name: str, model: Reader) -> Model:
    return Model(
        name=model.optional("name", _MODEL_NAME, pool_name),
        source=model.child("source", _source),
    )


def _source(source: Reader) -> PythonPackage | LocalPath:
    members: dict[str, Callable[[Reader], PythonPackage | LocalPath]] = {
        "pythonPackage": lambda member: PythonPackage(member.required("name", _DISTRIBUTION, "name the package")),
        "local": lambda member: LocalPath(member.required("path", _ABSOLUTE_PATH, "say where the checkpoint is")),
    }
    return source.one_of(members)


def _engine(engine: Reader) -> Engine:
    return Engine(
        image=engine.optional("image", _IMAGE, None),
        resources=engine.child("resources", lambda resources: resources.child("limits", _resources)),
        kv_cache=engine.child("kvCache", _kv_cache),
        limits=engine.child("limits", _limits),
        startup_seconds=engine.optional("startupSeconds", integer(1, 86400), 1800),
    )


def _resources(limits: Reader) -> Resources:
    return Resources(
        memory_bytes=limits.required(
            "memory", size(64 * MEBI, _MAX_SIZE), 'give what an engine may use, such as "4Gi"'
        ),
        millicores=limits.optional("cpu", millicores, None),
        num_gpus=limits.optional("nvidia.com/gpu", count(0, 16), 0),
    )


def _kv_cache(kv_cache: Reader) -> KvCache:
    return KvCache(
        memory_bytes=kv_cache.optional("memory", size(MEBI, _MAX_SIZE), GIBI),
        block_tokens=kv_cache.optional("blockTokens", choice(8, 16, 32, 64, 128), 16),
        dtype=kv_cache.optional("dtype", choice("Auto", "Float32", "BFloat16"), "Auto"),
    )


def _limits(limits: Reader) -> Limits:
    return Limits(
        max_model_tokens=limits.optional("maxModelTokens", integer(1, 2**24), 8192),
        max_batch_tokens=limits.optional("maxBatchTokens", integer(1, 2**20), 2048),
        max_sequences=limits.optional("maxSequences", integer(1, 4096), 64),
    )


def _cache(cache: Reader) -> Cache:
    ram = cache.optional_child("ram", lambda ram: ram.required("size", size(16 * MEBI, _MAX_SIZE), _GIVE_SIZE))
    return Cache(
        codec=cache.optional("codec", choice(*CODECS), "Raw"),
        ram_bytes=ram or 0,
        disk=cache.optional_child("disk", _disk),
        idle_seconds=cache.optional("idleSeconds", integer(1, 86400), 20),
        pool=cache.optional_child("pool", _memcached),
        secret_name=_secret_reference(cache, "secretRef"),
    )


def _disk(disk: Reader) -> Disk:
    return Disk(
        size_bytes=disk.required("size", size(64 * MEBI, _MAX_SIZE), _GIVE_SIZE),
        storage_class_name=disk.optional("storageClassName", _SECRET_NAME, None),
    )


def _memcached(pool: Reader) -> ManagedPool | ExternalPool:
    members: dict[str, Callable[[Reader], ManagedPool | ExternalPool]] = {
        "managed": lambda managed: ManagedPool(
            replicas=managed.optional("replicas", integer(1, 100), 1),
            memory_per_replica_bytes=managed.required("memoryPerReplica", size(64 * MEBI, _MAX_SIZE), _GIVE_SIZE),
        ),
        "external": lambda external: ExternalPool(
            external.required_list("addresses", _HOST_PORT, 100),
            tls_secret_name=_secret_reference(external, "tlsSecretRef"),
            auth_secret_name=_secret_reference(external, "authSecretRef"),
        ),
    }
    return pool.one_of(members)


def _routing(routing: Reader) -> Routing:
    return Routing(
        policy=routing.optional("policy", choice("CacheAware", "LeastLoaded", "RoundRobin"), "CacheAware"),
        replicas=routing.optional("replicas", integer(1, 50), 1),
    )


def _tenancy(tenancy: Reader) -> Tenancy:
    return Tenancy(
        api_keys_secret_name=_secret_reference(tenancy, "apiKeysSecretRef"),
        shared_prefixes=tenancy.optional_list("sharedPrefixes", _PREFIX, MAX_SHARED_PREFIXES),
    )


def _secret_reference(reader: Reader, key: str) -> str | None:
    return reader.optional_child(key, lambda secret: secret.required("name", _SECRET_NAME, "name the Secret"))


def _check_memory(pool: InferencePool, problems: Problems) -> None:
    resources = "spec.engine.resources.limits"
    memory, gpus, kv_memory = f"{resources}.memory", f'{resources}."nvidia.com/gpu"', "spec.engine.kvCache.memory"
    if not problems.is_clear(memory, gpus, kv_memory) or pool.engine.resources.num_gpus:
        return  # with a GPU the KV cache is in the GPU's memory, whose size the spec does not know
    limit, kv_cache = pool.engine.resources.memory_bytes, pool.engine.kv_cache.memory_bytes
    if limit <= kv_cache:
        what = f"{format_bytes(limit)} does not hold the KV cache ({format_bytes(kv_cache)}) and the weights"
        problems.add(memory, f"{what}; give more, or lower {kv_memory}")


def _check_block_tokens(pool: InferencePool, problems: Problems) -> None:
    block_path, block_tokens = "spec.engine.kvCache.blockTokens", pool.engine.kv_cache.block_tokens
    limits = pool.engine.limits
    for key, value in (("maxModelTokens", limits.max_model_tokens), ("maxBatchTokens", limits.max_batch_tokens)):
        path = f"spec.engine.limits.{key}"
        if problems.is_clear(path, block_path) and value < block_tokens:
            problems.add(path, f"{value} is less than one block; give at least {block_tokens} ({block_path})")


def _check_external_secret(pool: InferencePool, problems: Problems) -> None:
    path = "spec.cache.secretRef"
    is_shared = isinstance(pool.cache.pool, ExternalPool)
    if problems.is_clear("spec.cache.pool", path) and is_shared and pool.cache.secret_name is None:
        problems.add(
            path,
            "is missing; name the Secret with the pool secret: an external pool may serve several InferencePools, "
            "and a record is found only with the secret it was written with",
        )


_MAX_SIZE = 2**50  # 1 Pi
_GIVE_SIZE = 'give a size such as "8Gi"'
_PREFIX = text(r"[^\ud800-\udfff]+", "the text that prompts start with", MAX_PREFIX_CHARACTERS)
_POOL_NAME = text(
    r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?",
    "lower-case letters, digits and dashes, a letter first and no dash last",
    MAX_NAME_LENGTH,
)
_MODEL_NAME = text(
    r"[A-Za-z0-9][-A-Za-z0-9._/:@+]*", "letters, digits and any of - . _ / : @ +, a letter or digit first", 253
)
_DISTRIBUTION = text(r"[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?", "the name of an installed Python package", 214)
_ABSOLUTE_PATH = text(r"/[^\x00-\x1f\x7f\ud800-\udfff]*", "an absolute path", 4096)
_IMAGE = text(r"[A-Za-z0-9][-A-Za-z0-9._/:@]*", "an image reference", 512)
_SECRET_NAME = text(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", "a name of lower-case letters, digits, dashes and dots", 253)
_PORT = r"([1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])"
_HOST_PORT = text(
    rf"([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]):{_PORT}", 'host:port, such as "mc-0:11211"', 260
)
