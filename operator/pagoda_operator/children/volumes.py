"""What is mounted into a pool's containers, and where: each function returns one mount, or None where there is none."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagoda_operator import names
from pagoda_operator.children import quantities, sizes
from pagoda_operator.children.inputs import Owner
from pagoda_operator.children.tiers import managed_of
from pagoda_protocol.live import LIVE_FILE
from pagoda_protocol.pool.spec import ExternalPool, InferencePool
from pagoda_protocol.tenants import DIGEST_SECRET_KEY, POOL_SECRET_KEY

USERNAME_KEY = "username"
PASSWORD_KEY = "password"
AUTH_FILE_KEY = "auth"
"""memcached's own file: `username:password`."""

TMP_DIR = "/tmp"

_FILE_MODE = 0o440  # the pod's group reads it


@dataclass(frozen=True)
class Place:
    """A volume and the folder where it is mounted."""

    volume_name: str
    path: str
    source: Mapping[str, Any]
    is_writable: bool = False

    def volume(self) -> dict[str, Any]:
        """Return the pod's volume."""
        return {"name": self.volume_name, **self.source}

    def mount(self) -> dict[str, Any]:
        """Return the container's mount."""
        read_only = {} if self.is_writable else {"readOnly": True}
        return {"name": self.volume_name, "mountPath": self.path, **read_only}


def present(*places: Place | None) -> tuple[Place, ...]:
    """Return the places that are there."""
    return tuple(place for place in places if place is not None)


def path_of(place: Place | None) -> str | None:
    """Return the folder of a place that may not be there."""
    return None if place is None else place.path


def volumes(places: Iterable[Place]) -> list[dict[str, Any]]:
    """Return the volumes of a pod whose containers have these places, each once."""
    return list({place.volume_name: place.volume() for place in places}.values())


def shared(pool: InferencePool) -> Place:
    """The folder in memory that engine and sidecar share."""
    size = quantities.memory(sizes.volume_bytes(pool))
    source = {"emptyDir": {"medium": "Memory", "sizeLimit": size}}
    return Place("pagoda-kv", "/run/pagoda/kv", source, is_writable=True)


def pool_secret(pool: InferencePool, owner: Owner) -> Place:
    """The pool secret with its digest key."""
    return _secret("pagoda-secret", _pool_secret_name(pool, owner), POOL_SECRET_KEY, DIGEST_SECRET_KEY, at="secret")


def digest_key(pool: InferencePool, owner: Owner) -> Place:
    """The digest key alone."""
    return _secret("pagoda-secret", _pool_secret_name(pool, owner), DIGEST_SECRET_KEY, at="secret")


def settings(owner: Owner) -> Place:
    """The live settings and the list of the pool's nodes."""
    return _settings(owner, (LIVE_FILE, names.POOL_NODES_KEY))


def live_settings(owner: Owner) -> Place:
    """The live settings alone."""
    return _settings(owner, (LIVE_FILE,))


def tenants(pool: InferencePool) -> Place | None:
    """Who may call."""
    name = pool.tenancy.api_keys_secret_name
    return None if name is None else _secret("pagoda-tenants", name, at="tenants")


def pool_tls(pool: InferencePool) -> Place | None:
    """With which certificates nodes that somebody else runs are spoken to."""
    external = pool.cache.pool
    name = external.tls_secret_name if isinstance(external, ExternalPool) else None
    return None if name is None else _secret("pagoda-pool-tls", name, at="pool-tls")


def pool_auth(pool: InferencePool, owner: Owner) -> Place | None:
    """With which password the pool's nodes are spoken to."""
    nodes = pool.cache.pool
    if managed_of(pool) is not None:
        name: str | None = names.memcached_secret_name(owner.name, owner.uid)
    else:
        name = nodes.auth_secret_name if isinstance(nodes, ExternalPool) else None
    return None if name is None else _secret("pagoda-pool-auth", name, USERNAME_KEY, PASSWORD_KEY, at="pool-auth")


def node_auth(owner: Owner) -> Place:
    """What a managed node asks of those who speak to it."""
    return _secret("pagoda-auth", names.memcached_secret_name(owner.name, owner.uid), AUTH_FILE_KEY, at="auth")


def disk(pool: InferencePool) -> Place | None:
    """The disk tier: of the node's own disk, or a volume that lives and dies with the pod."""
    tier = pool.cache.disk
    if tier is None:
        return None
    source: dict[str, Any]
    if tier.storage_class_name is None:
        source = {"emptyDir": {"sizeLimit": quantities.memory(sizes.local_disk_bytes(pool))}}
    else:
        size = quantities.memory(sizes.claimed_disk_bytes(tier.size_bytes))
        claim = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": tier.storage_class_name,
            "resources": {"requests": {"storage": size}},
        }
        source = {"ephemeral": {"volumeClaimTemplate": {"spec": claim}}}
    return Place("pagoda-disk", "/var/lib/pagoda/disk", source, is_writable=True)


def temporary(num_bytes: int) -> Place:
    """The one folder that every program may expect to be able to write to."""
    return Place("pagoda-tmp", TMP_DIR, {"emptyDir": {"sizeLimit": quantities.memory(num_bytes)}}, is_writable=True)


def shared_memory(pool: InferencePool) -> Place | None:
    """/dev/shm for several GPUs; what a container has there by itself, 64Mi, is enough for one."""
    if pool.engine.resources.num_gpus < 2:
        return None
    source = {"emptyDir": {"medium": "Memory", "sizeLimit": quantities.memory(sizes.SHARED_MEMORY_BYTES)}}
    return Place("pagoda-shm", "/dev/shm", source, is_writable=True)


def _pool_secret_name(pool: InferencePool, owner: Owner) -> str:
    return pool.cache.secret_name or names.pool_secret_name(owner.name, owner.uid)


def _secret(volume_name: str, secret_name: str, *keys: str, at: str) -> Place:
    source: dict[str, Any] = {"secretName": secret_name, "defaultMode": _FILE_MODE, **_items(keys)}
    return Place(volume_name, f"/etc/pagoda/{at}", {"secret": source})


def _settings(owner: Owner, keys: Sequence[str]) -> Place:
    source = {"name": names.live_name(owner.name), "defaultMode": _FILE_MODE, **_items(keys)}
    return Place("pagoda-live", "/etc/pagoda/live", {"configMap": source})


def _items(keys: Sequence[str]) -> dict[str, Any]:
    return {"items": [{"key": key, "path": key} for key in keys]} if keys else {}
