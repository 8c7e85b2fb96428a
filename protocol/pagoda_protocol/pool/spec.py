"""The InferencePool as frozen data, and its parser.

`parse_pool` takes the mapping of a manifest (from YAML or from the API server) and either returns a pool in which every
default is filled in, every size is bytes and every rule holds, or raises SpecError with all that is wrong. Fields whose
feature is not built yet are unknown here; the schema grows with its features.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pagoda_protocol.live import MAX_SHARED_PREFIXES
from pagoda_protocol.pool.cache import Cache, Disk, ExternalPool, ManagedPool, read_cache
from pagoda_protocol.pool.engine import Engine, KvCache, Limits, Resources, Rollout, read_engine
from pagoda_protocol.pool.pod_template import PodTemplate
from pagoda_protocol.pool.quantities import format_bytes
from pagoda_protocol.pool.reader import Problems, Reader, SpecError, choice, integer, text
from pagoda_protocol.pool.texts import ABSOLUTE_PATH, DISTRIBUTION, MODEL_NAME, secret_reference

__all__ = [
    "API_VERSION", "KIND", "MAX_NAME_LENGTH", "Cache", "Disk", "Engine", "ExternalPool", "InferencePool", "KvCache",
    "Limits", "LocalPath", "ManagedPool", "Model", "PodTemplate", "PythonPackage", "Resources", "Rollout", "Routing",
    "SpecError", "Tenancy", "parse_pool",
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
    network_policy: str
    """Managed: only what the parts need may reach them. None: the cluster's own rules hold."""
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
    _check_ram(pool, problems)
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
        engine=spec.child("engine", read_engine),
        cache=spec.child("cache", read_cache),
        routing=spec.child("routing", _routing),
        tenancy=spec.child("tenancy", _tenancy),
        network_policy=spec.child("networkPolicy", _network_policy),
        drain_seconds=spec.optional("drainSeconds", integer(0, 3600), 120),
    )


def _model(pool_name: str, model: Reader) -> Model:
    return Model(
        name=model.optional("name", MODEL_NAME, pool_name),
        source=model.child("source", _source),
    )


def _source(source: Reader) -> PythonPackage | LocalPath:
    members: dict[str, Callable[[Reader], PythonPackage | LocalPath]] = {
        "pythonPackage": lambda member: PythonPackage(member.required("name", DISTRIBUTION, "name the package")),
        "local": lambda member: LocalPath(member.required("path", ABSOLUTE_PATH, "say where the checkpoint is")),
    }
    return source.one_of(members)


def _routing(routing: Reader) -> Routing:
    return Routing(
        policy=routing.optional("policy", choice("CacheAware", "LeastLoaded", "RoundRobin"), "CacheAware"),
        replicas=routing.optional("replicas", integer(1, 50), 1),
    )


def _tenancy(tenancy: Reader) -> Tenancy:
    read = Tenancy(
        api_keys_secret_name=secret_reference(tenancy, "apiKeysSecretRef"),
        shared_prefixes=tenancy.optional_list("sharedPrefixes", _PREFIX, MAX_SHARED_PREFIXES),
    )
    num_characters = sum(map(len, filter(None, read.shared_prefixes)))
    if num_characters > _MAX_PREFIX_CHARACTERS:
        what = f"has {num_characters} characters in all; give at most {_MAX_PREFIX_CHARACTERS}"
        tenancy.problems.add(f"{tenancy.path}.sharedPrefixes", what)
    return read


def _network_policy(network_policy: Reader) -> str:
    return network_policy.optional("mode", choice("Managed", "None"), "Managed")


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


def _check_ram(pool: InferencePool, problems: Problems) -> None:
    for key, tier in (("disk", pool.cache.disk), ("pool", pool.cache.pool)):
        path = f"spec.cache.{key}"
        if problems.is_clear(path, "spec.cache.ram") and tier is not None and not pool.cache.ram_bytes:
            problems.add(
                path,
                "stands without ram, through which alone blocks reach it; "
                f"give spec.cache.ram.size too, or leave {key} out",
            )


_MAX_PREFIX_CHARACTERS = 1 << 17  # in all: as live.json they have to fit in one ConfigMap, whatever the alphabet
_PREFIX = text(r"[^\ud800-\udfff]+", "the text that prompts start with", _MAX_PREFIX_CHARACTERS)
_POOL_NAME = text(
    r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?",
    "lower-case letters, digits and dashes, a letter first and no dash last",
    MAX_NAME_LENGTH,
)
