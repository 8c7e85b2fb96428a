"""From a pool's spec to the command line and environment of each program.

The one place that knows our programs' flags (`docs/design.md` lists them): `pagoda up` starts processes with these
lists and the operator fills container args with them. What the spec cannot know, because it differs from place to
place, comes in as a *placement*.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pagoda_protocol.pool.quantities import MEBI
from pagoda_protocol.pool.spec import InferencePool, ManagedPool, PythonPackage

MAX_ITEM_BYTES = 128 * MEBI
_MEMCACHED_CONNECTIONS = 1024
_MEMCACHED_THREADS = 2


@dataclass(frozen=True)
class Command:
    """A program to start: its argument list and what its environment needs beside the inherited one."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class EnginePlacement:
    """Where one engine runs."""

    name: str
    """The pod's name."""
    host: str
    port: int
    secret_dir: str
    """Holds `pool` and `digest`."""
    threads: int
    volume: str | None = None
    """The folder shared with the sidecar; None: no tiers below the device."""
    tenants_dir: str | None = None
    """Holds `tenants.json`; None: no API key is asked for."""
    settings_dir: str | None = None
    """Holds `live.json`; None: its defaults."""
    model_path: str | None = None
    """Where the weights have been put in this place; None: where the spec's source says."""
    exact: bool = False
    device: str = "cpu"
    """cpu | cuda."""


@dataclass(frozen=True)
class SidecarPlacement:
    """Where one sidecar runs."""

    name: str
    """The pod's name."""
    host: str
    port: int
    volume: str
    secret_dir: str
    settings_dir: str
    """Holds `pool-nodes.json`."""
    tenants_dir: str | None = None
    """Holds `tenants.json`, for the tenants' shares; None: nobody has one."""
    disk_dir: str | None = None
    """Where the disk tier keeps its segments; None: no disk tier."""
    pool_tls_dir: str | None = None
    """Holds `ca.crt`, and `tls.crt` and `tls.key` for a client certificate; None: no TLS."""
    pool_auth_dir: str | None = None
    """Holds `username` and `password` for the pool's nodes; None: they ask for none."""
    ram_bytes: int | None = None
    """Bytes of the RAM tier in this place (0: off); None: what the spec says."""


@dataclass(frozen=True)
class RouterPlacement:
    """Where one router runs."""

    name: str
    host: str
    port: int
    secret_dir: str
    """Holds `digest` alone."""
    settings_dir: str
    """Holds `live.json`, and `pods.json` unless pods are found in Kubernetes."""
    tenants_dir: str | None = None
    pod_selector: str | None = None
    """Finds the engine pods in Kubernetes by their labels; None: `pods.json` names them."""
    namespace: str | None = None
    """Where these pods are; given exactly with `pod_selector`."""


@dataclass(frozen=True)
class MemcachedPlacement:
    """Where one memcached node runs."""

    host: str
    port: int
    program: str = "memcached"
    user: str | None = "nobody"
    """Whom it becomes when it is started by root; None: it stays who it is."""
    auth_file: str | None = None
    """Holds `username:password` lines, one of which a client must show; None: nobody is asked."""


def engine_command(pool: InferencePool, placement: EnginePlacement, python: str = "python") -> Command:
    """Return the command of one engine."""
    engine = pool.engine
    argv = _program(
        python,
        "pagoda_engine",
        {
            "--name": placement.name,
            "--host": placement.host,
            "--port": placement.port,
            "--model-name": pool.model.name,
            **_model_source(pool, placement),
            "--volume": placement.volume,
            "--secret-dir": placement.secret_dir,
            "--tenants-dir": placement.tenants_dir,
            "--settings-dir": placement.settings_dir,
            "--codec": pool.cache.codec,
            "--device": placement.device,
            "--kv-memory-bytes": engine.kv_cache.memory_bytes,
            "--block-tokens": engine.kv_cache.block_tokens,
            "--kv-dtype": engine.kv_cache.dtype,
            "--max-model-tokens": engine.limits.max_model_tokens,
            "--max-batch-tokens": engine.limits.max_batch_tokens,
            "--max-sequences": engine.limits.max_sequences,
            "--threads": placement.threads,
            "--drain-seconds": pool.drain_seconds,
        },
    )
    # Idle OpenMP threads that spin would take the cores of the pod's other programs.
    environment = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(placement.threads)}
    return Command((*argv, "--exact") if placement.exact else argv, environment)


def drain_command(pool: InferencePool, placement: EnginePlacement, python: str = "python") -> Command:
    """Return the command that drains a running engine from beside it; it ends once drained or when the time is up."""
    flags: dict[str, str | int | None] = {
        "--port": placement.port,
        "--secret-dir": placement.secret_dir,
        "--seconds": pool.drain_seconds,
    }
    return Command(_program(python, "pagoda_engine.drain", flags))


def sidecar_command(pool: InferencePool, placement: SidecarPlacement, python: str = "python") -> Command:
    """Return the command of one sidecar."""
    argv = _program(
        python,
        "pagoda_sidecar",
        {
            "--name": placement.name,
            "--host": placement.host,
            "--port": placement.port,
            "--volume": placement.volume,
            "--secret-dir": placement.secret_dir,
            "--settings-dir": placement.settings_dir,
            "--tenants-dir": placement.tenants_dir,
            "--ram-bytes": pool.cache.ram_bytes if placement.ram_bytes is None else placement.ram_bytes,
            "--disk-dir": placement.disk_dir,
            "--disk-bytes": pool.cache.disk.size_bytes if pool.cache.disk is not None and placement.disk_dir else 0,
            "--pool-tls-dir": placement.pool_tls_dir,
            "--pool-auth-dir": placement.pool_auth_dir,
        },
    )
    return Command(argv)


def router_command(pool: InferencePool, placement: RouterPlacement, python: str = "python") -> Command:
    """Return the command of one router."""
    argv = _program(
        python,
        "pagoda_router",
        {
            "--name": placement.name,
            "--host": placement.host,
            "--port": placement.port,
            "--model-name": pool.model.name,
            "--secret-dir": placement.secret_dir,
            "--settings-dir": placement.settings_dir,
            "--tenants-dir": placement.tenants_dir,
            "--pod-selector": placement.pod_selector,
            "--namespace": placement.namespace,
            "--policy": pool.routing.policy,
            "--block-tokens": pool.engine.kv_cache.block_tokens,
            "--drain-seconds": pool.drain_seconds,
        },
    )
    return Command(argv)


def memcached_command(managed: ManagedPool, placement: MemcachedPlacement) -> Command:
    """Return the command of one managed memcached node.

    The item limit is the largest that memcached takes, up to 128 MiB, whatever the model: it costs no memory.
    """
    memory_mib = managed.memory_per_replica_bytes // MEBI
    options: dict[str, str | int | None] = {
        "-u": placement.user,
        "-l": placement.host,
        "-p": placement.port,
        "-m": memory_mib,
        "-I": min(memory_mib * MEBI // 2, MAX_ITEM_BYTES),
        "-c": _MEMCACHED_CONNECTIONS,
        "-t": _MEMCACHED_THREADS,
        "-Y": placement.auth_file,
    }
    return Command((placement.program, *_flags(options)))


def _model_source(pool: InferencePool, placement: EnginePlacement) -> dict[str, str]:
    if placement.model_path is not None:
        return {"--model-path": placement.model_path}
    source = pool.model.source
    return {"--model-package": source.name} if isinstance(source, PythonPackage) else {"--model-path": source.path}


def _program(python: str, module: str, flags: Mapping[str, str | int | None]) -> tuple[str, ...]:
    return (python, "-m", module, *_flags(flags))


def _flags(flags: Mapping[str, str | int | None]) -> tuple[str, ...]:
    """Flatten flags, without those that are None; an empty value, or one that reads as a flag, is the caller's bug."""
    present = [(flag, str(value)) for flag, value in flags.items() if value is not None]
    for flag, value in present:
        if not value or value.startswith("-"):
            raise ValueError(f"{flag}: {value!r} cannot be its value")
    return tuple(word for pair in present for word in pair)
