"""The Secrets that are made for a pool: random, so they are sent once and never compared, read or changed."""

import base64
from collections.abc import Callable, Mapping

from pagoda_operator import names
from pagoda_operator.children.inputs import Manifest, Owner
from pagoda_operator.children.objects import manifest
from pagoda_operator.children.tiers import managed_of
from pagoda_operator.children.volumes import AUTH_FILE_KEY, PASSWORD_KEY, USERNAME_KEY
from pagoda_protocol.pool.spec import InferencePool
from pagoda_protocol.tenants import DIGEST_SECRET_KEY, POOL_SECRET_BYTES, POOL_SECRET_KEY, digest_secret

RandomBytes = Callable[[int], bytes]

_COMPONENT = "secret"
_USERNAME = "pagoda"
_PASSWORD_BYTES = 32


def render_secrets(pool: InferencePool, owner: Owner, random_bytes: RandomBytes) -> tuple[Manifest, ...]:
    """Return the Secrets to create where they are not there yet; `random_bytes` gives so many unpredictable ones."""
    secrets = []
    if pool.cache.secret_name is None:
        secrets.append(_secret(owner, names.pool_secret_name(owner.name, owner.uid), _pool_keys(random_bytes)))
    if managed_of(pool) is not None:
        name = names.memcached_secret_name(owner.name, owner.uid)
        secrets.append(_secret(owner, name, _memcached_keys(random_bytes)))
    return tuple(secrets)


def _pool_keys(random_bytes: RandomBytes) -> dict[str, bytes]:
    secret = random_bytes(POOL_SECRET_BYTES)
    return {POOL_SECRET_KEY: secret, DIGEST_SECRET_KEY: digest_secret(secret)}


def _memcached_keys(random_bytes: RandomBytes) -> dict[str, bytes]:
    password = random_bytes(_PASSWORD_BYTES).hex()  # no space or colon, which memcached's file could not hold
    return {
        USERNAME_KEY: _USERNAME.encode(),
        PASSWORD_KEY: password.encode(),
        AUTH_FILE_KEY: f"{_USERNAME}:{password}\n".encode(),
    }


def _secret(owner: Owner, name: str, keys: Mapping[str, bytes]) -> Manifest:
    data = {key: base64.b64encode(value).decode("ascii") for key, value in keys.items()}
    labels = names.shared_labels(owner.name, _COMPONENT)
    return manifest("v1", "Secret", owner, name, labels, type="Opaque", immutable=True, data=data)
