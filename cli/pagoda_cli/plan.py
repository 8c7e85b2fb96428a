"""From a pool and a place on this machine to the processes to start. Pure: no port is opened and no file read here.

pod chat-0 = engine chat-0 + sidecar chat-0, sharing <volumes>/chat-0        memcached chat-memcached-0, …
router chat-router                                                            settings files for sidecars and router
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pagoda_protocol.live import LIVE_FILE
from pagoda_protocol.pool.arguments import (
    Command,
    EnginePlacement,
    MemcachedPlacement,
    RouterPlacement,
    SidecarPlacement,
    engine_command,
    memcached_command,
    router_command,
    sidecar_command,
)
from pagoda_protocol.pool.spec import ExternalPool, InferencePool, ManagedPool

POOL_NODES_FILE = "pool-nodes.json"
PODS_FILE = "pods.json"

_STARTUP_SECONDS = 60
_STOP_SECONDS = 5.0
_GRACE_SECONDS = 5.0  # beyond drainSeconds: to end what a drain leaves, and to exit


class Kind(Enum):
    """What a part is."""

    MEMCACHED = "memcached"
    SIDECAR = "sidecar"
    ENGINE = "engine"
    ROUTER = "router"


STOP_ORDER = (Kind.ROUTER, Kind.ENGINE, Kind.SIDECAR, Kind.MEMCACHED)
"""Who feeds whom: a part ends when nobody that still works needs it."""


@dataclass(frozen=True)
class Part:
    """One process to keep running."""

    kind: Kind
    name: str
    command: Command
    port: int
    ready_path: str | None
    """What answers 200 when the part is ready; None: it is ready when its port can be connected to."""
    startup_seconds: float
    """How long it may take to become ready."""
    stop_seconds: float
    """How long it may take to end after SIGTERM."""

    @property
    def title(self) -> str:
        """How the part is called in front of the user."""
        return f"{self.kind.value} {self.name}"


@dataclass(frozen=True)
class PodPorts:
    """The ports of one pod."""

    engine: int
    sidecar: int


@dataclass(frozen=True)
class Place:
    """Where on this machine a pool runs."""

    host: str
    router_port: int
    pod_ports: Sequence[PodPorts]
    """One per replica."""
    node_ports: Sequence[int]
    """One per managed memcached node; none where memcached is not installed."""
    volumes: str
    secret_dir: str
    router_secret_dir: str
    settings_dir: str
    tenants_dir: str | None
    pool_tls_dir: str | None
    pool_auth_dir: str | None
    disks: str
    """Holds a folder per pod for its disk tier."""
    num_cores: int
    memcached: str
    python: str
    exact: bool


@dataclass(frozen=True)
class Plan:
    """Everything to start, in the order to start it, and the settings files that must be there before."""

    pool_name: str
    model_name: str
    parts: tuple[Part, ...]
    settings: Mapping[str, object]
    volumes: tuple[str, ...]
    disks: tuple[str, ...]
    """One folder per pod that has a disk tier."""


def make_plan(pool: InferencePool, place: Place) -> Plan:
    """Plan the processes of `pool` at `place`."""
    pods = [(f"{pool.name}-{index}", ports) for index, ports in enumerate(place.pod_ports)]
    nodes = [(f"{pool.name}-memcached-{index}", port) for index, port in enumerate(place.node_ports)]
    parts = [_memcached(pool, place, name, port) for name, port in nodes]
    parts += [_sidecar(pool, place, name, ports.sidecar) for name, ports in pods]
    parts += [_engine(pool, place, name, ports.engine) for name, ports in pods]
    parts.append(_router(pool, place))
    return Plan(
        pool_name=pool.name,
        model_name=pool.model.name,
        parts=tuple(parts),
        settings={
            POOL_NODES_FILE: {"nodes": _pool_nodes(pool, place, nodes)},
            PODS_FILE: {"pods": [_pod_entry(place, name, ports) for name, ports in pods]},
            LIVE_FILE: _live(pool),
        },
        volumes=tuple(_volume(place, name) for name, _ in pods),
        disks=tuple(disk for name, _ in pods if (disk := _disk(pool, place, name)) is not None),
    )


def threads_per_engine(num_cores: int, replicas: int) -> int:
    """Return how many threads each engine computes with."""
    return max(1, num_cores // replicas)


def num_managed_nodes(pool: InferencePool, has_memcached: bool) -> int:
    """Return how many memcached nodes are started here."""
    managed = pool.cache.pool
    return managed.replicas if has_memcached and isinstance(managed, ManagedPool) else 0


def _engine(pool: InferencePool, place: Place, name: str, port: int) -> Part:
    placement = EnginePlacement(
        name=name,
        host=place.host,
        port=port,
        secret_dir=place.secret_dir,
        threads=threads_per_engine(place.num_cores, pool.replicas),
        volume=_volume(place, name),
        tenants_dir=place.tenants_dir,
        settings_dir=place.settings_dir,
        exact=place.exact,
    )
    command = engine_command(pool, placement, place.python)
    stop_seconds = pool.drain_seconds + _GRACE_SECONDS
    return Part(Kind.ENGINE, name, command, port, "/ready", pool.engine.startup_seconds, stop_seconds)


def _sidecar(pool: InferencePool, place: Place, name: str, port: int) -> Part:
    placement = SidecarPlacement(
        name=name,
        host=place.host,
        port=port,
        volume=_volume(place, name),
        secret_dir=place.secret_dir,
        settings_dir=place.settings_dir,
        tenants_dir=place.tenants_dir,
        disk_dir=_disk(pool, place, name),
        pool_tls_dir=place.pool_tls_dir,
        pool_auth_dir=place.pool_auth_dir,
    )
    command = sidecar_command(pool, placement, place.python)
    startup_seconds = pool.engine.startup_seconds  # a large arena takes its time
    return Part(Kind.SIDECAR, name, command, port, "/ready", startup_seconds, _STOP_SECONDS)


def _router(pool: InferencePool, place: Place) -> Part:
    placement = RouterPlacement(
        name=f"{pool.name}-router",
        host=place.host,
        port=place.router_port,
        secret_dir=place.router_secret_dir,
        settings_dir=place.settings_dir,
        tenants_dir=place.tenants_dir,
    )
    command = router_command(pool, placement, place.python)
    # It is ready only once an engine is.
    startup_seconds = pool.engine.startup_seconds + _STARTUP_SECONDS
    stop_seconds = pool.drain_seconds + _GRACE_SECONDS
    return Part(Kind.ROUTER, placement.name, command, place.router_port, "/ready", startup_seconds, stop_seconds)


def _memcached(pool: InferencePool, place: Place, name: str, port: int) -> Part:
    assert isinstance(pool.cache.pool, ManagedPool)
    command = memcached_command(pool.cache.pool, MemcachedPlacement(place.host, port, place.memcached))
    return Part(Kind.MEMCACHED, name, command, port, None, _STARTUP_SECONDS, _STOP_SECONDS)


def _pool_nodes(pool: InferencePool, place: Place, nodes: Sequence[tuple[str, int]]) -> list[dict[str, str]]:
    if isinstance(pool.cache.pool, ExternalPool):
        return [{"name": address, "address": address} for address in pool.cache.pool.addresses]
    return [{"name": name, "address": f"{place.host}:{port}"} for name, port in nodes]


def _live(pool: InferencePool) -> dict[str, object]:
    shared = list(pool.tenancy.shared_prefixes)
    return {"generation": 1, "idleSeconds": pool.cache.idle_seconds, "sharedPrefixes": shared}


def _pod_entry(place: Place, name: str, ports: PodPorts) -> dict[str, str]:
    return {"name": name, "engine": f"{place.host}:{ports.engine}", "sidecar": f"{place.host}:{ports.sidecar}"}


def _volume(place: Place, pod: str) -> str:
    return f"{place.volumes}/{pod}"


def _disk(pool: InferencePool, place: Place, pod: str) -> str | None:
    """The folder of the pod's disk tier."""
    return None if pool.cache.disk is None else f"{place.disks}/{pod}"
