"""The tiers below the device, as frozen data, and the parser of `spec.cache`."""

from collections.abc import Callable
from dataclasses import dataclass

from pagoda_protocol.pool.quantities import MEBI
from pagoda_protocol.pool.reader import Reader, choice, integer, size
from pagoda_protocol.pool.texts import GIVE_SIZE, HOST_PORT, MAX_SIZE, MODEST_SIZE, OBJECT_NAME, secret_reference
from pagoda_protocol.records import CODECS

__all__ = ["Cache", "Disk", "ExternalPool", "ManagedPool", "read_cache"]


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
    """0: no RAM tier, and then neither disk nor pool."""
    disk: Disk | None
    idle_seconds: int
    """A session that nobody touched for so long is idle."""
    pool: ManagedPool | ExternalPool | None
    secret_name: str | None
    """The Secret that holds the pool secret; None: one is made."""


def read_cache(cache: Reader) -> Cache:
    """Read `spec.cache`."""
    ram = cache.optional_child("ram", lambda ram: ram.required("size", size(16 * MEBI, MAX_SIZE), GIVE_SIZE))
    return Cache(
        codec=cache.optional("codec", choice(*CODECS), "Raw"),
        ram_bytes=ram or 0,
        disk=cache.optional_child("disk", _disk),
        idle_seconds=cache.optional("idleSeconds", integer(1, 86400), 20),
        pool=cache.optional_child("pool", _memcached),
        secret_name=secret_reference(cache, "secretRef"),
    )


def _disk(disk: Reader) -> Disk:
    return Disk(
        size_bytes=disk.required("size", MODEST_SIZE, GIVE_SIZE),
        storage_class_name=disk.optional("storageClassName", OBJECT_NAME, None),
    )


def _memcached(pool: Reader) -> ManagedPool | ExternalPool:
    members: dict[str, Callable[[Reader], ManagedPool | ExternalPool]] = {
        "managed": lambda managed: ManagedPool(
            replicas=managed.optional("replicas", integer(1, 100), 1),
            memory_per_replica_bytes=managed.required("memoryPerReplica", MODEST_SIZE, GIVE_SIZE),
        ),
        "external": lambda external: ExternalPool(
            external.required_list("addresses", HOST_PORT, 100),
            tls_secret_name=secret_reference(external, "tlsSecretRef"),
            auth_secret_name=secret_reference(external, "authSecretRef"),
        ),
    }
    return pool.one_of(members)
