"""Which Secrets a pool needs, with which keys. Pure, and without a value of any."""

from collections.abc import Iterable
from dataclasses import dataclass

from pagoda_cli.doctor import names
from pagoda_cli.doctor.snapshot import Manifest, name_of, namespace_of, spec_of
from pagoda_protocol.pool.spec import ExternalPool, InferencePool, ManagedPool


@dataclass(frozen=True)
class Need:
    """A Secret that pods of a pool read."""

    namespace: str
    name: str
    keys: tuple[str, ...]
    field: str
    """The field that names it; empty: the operator makes it."""


def needed_secrets(pool: Manifest) -> tuple[Need, ...]:
    """Return what a pool needs; nothing for a spec that is refused."""
    spec = spec_of(pool)
    return tuple(_needs(pool, spec)) if isinstance(spec, InferencePool) else ()


def _needs(pool: Manifest, spec: InferencePool) -> Iterable[Need]:
    namespace, name, uid = namespace_of(pool), name_of(pool), str(pool["metadata"].get("uid", ""))
    keys = ("pool", "digest")
    if spec.cache.secret_name is None:
        yield Need(namespace, names.pool_secret(name, uid), keys, "")
    else:
        yield Need(namespace, spec.cache.secret_name, keys, "spec.cache.secretRef")
    if spec.tenancy.api_keys_secret_name is not None:
        yield Need(namespace, spec.tenancy.api_keys_secret_name, ("tenants.json",), "spec.tenancy.apiKeysSecretRef")
    match spec.cache.pool:
        case ManagedPool():
            yield Need(namespace, names.memcached_secret(name, uid), ("username", "password", "auth"), "")
        case ExternalPool(tls_secret_name=tls, auth_secret_name=auth):
            if tls is not None:
                yield Need(namespace, tls, ("ca.crt",), "spec.cache.pool.external.tlsSecretRef")
            if auth is not None:
                yield Need(namespace, auth, ("username", "password"), "spec.cache.pool.external.authSecretRef")
