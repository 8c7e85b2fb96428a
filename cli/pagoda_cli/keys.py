"""Secrets on one machine: files 0600 in the layout of the Kubernetes Secrets of the same names.

The pool secret is made once and kept, because everything the tiers hold is keyed by it. Secrets that a manifest names
are the user's: they must be there, as they must be in Kubernetes.
"""

import secrets
from pathlib import Path

from pagoda_cli.state import StateFolder, private_folder, write_private
from pagoda_protocol import tenants
from pagoda_protocol.pool.spec import ExternalPool, InferencePool


def secret_name(pool: InferencePool) -> str:
    """Return the name of the secret that holds the pool secret."""
    return pool.cache.secret_name or f"{pool.name}-pool-secret"


def secret_problems(pool: InferencePool, state: StateFolder) -> list[str]:
    """Return `path: what is wrong; what would be right` for secrets that cannot be used."""
    problems = []
    folder = state.secret(secret_name(pool))
    if pool.cache.secret_name is not None or folder.exists():
        path = "spec.cache.secretRef.name" if pool.cache.secret_name is not None else "pool secret"
        problems += [f"{path}: {line}" for line in _pool_secret_problems(folder)]
    if pool.tenancy.api_keys_secret_name is not None:
        file = state.secret(pool.tenancy.api_keys_secret_name) / tenants.TENANTS_KEY
        problems += [f"spec.tenancy.apiKeysSecretRef.name: {line}" for line in _tenants_problems(file)]
    for key, name, files in _node_secrets(pool):
        problems += [f"spec.cache.pool.external.{key}.name: {line}" for line in _missing(state.secret(name), files)]
    return problems


def prepare_secrets(pool: InferencePool, state: StateFolder) -> None:
    """Make the pool secret if absent, and give the router's folder the digest key alone."""
    folder = state.secret(secret_name(pool))
    private_folder(folder)
    pool_file, digest_file = folder / tenants.POOL_SECRET_KEY, folder / tenants.DIGEST_SECRET_KEY
    if not pool_file.exists():
        write_private(pool_file, secrets.token_bytes(tenants.POOL_SECRET_BYTES), is_precious=True)
    digest = tenants.digest_secret(pool_file.read_bytes())
    if not digest_file.exists():
        write_private(digest_file, digest)
    files = [pool_file, digest_file]
    if pool.tenancy.api_keys_secret_name is not None:
        files.append(state.secret(pool.tenancy.api_keys_secret_name) / tenants.TENANTS_KEY)
    for file in files:
        file.chmod(0o600)  # one that the user brought may allow more
    write_private(state.router_secret / tenants.DIGEST_SECRET_KEY, digest)


def _node_secrets(pool: InferencePool) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return (field, name, files that must be there) of the Secrets with which the pool's nodes are spoken to."""
    external = pool.cache.pool
    if not isinstance(external, ExternalPool):
        return []
    named = [
        ("tlsSecretRef", external.tls_secret_name, ("ca.crt",)),
        ("authSecretRef", external.auth_secret_name, ("username", "password")),
    ]
    return [(key, name, files) for key, name, files in named if name is not None]


def _missing(folder: Path, files: tuple[str, ...]) -> list[str]:
    return [f"{folder / name}: is not there; write it" for name in files if not (folder / name).is_file()]


def _pool_secret_problems(folder: Path) -> list[str]:
    pool_file, digest_file = folder / tenants.POOL_SECRET_KEY, folder / tenants.DIGEST_SECRET_KEY
    length = tenants.POOL_SECRET_BYTES
    right = f"run: mkdir -m 700 -p {folder} && head -c {length} /dev/urandom > {pool_file}"
    try:
        secret = pool_file.read_bytes()
        if len(secret) != length:
            return [f"{pool_file}: holds {len(secret)} bytes, not {length} random ones; {right}"]
        if digest_file.exists() and digest_file.read_bytes() != tenants.digest_secret(secret):
            return [f"{digest_file}: does not derive from the key beside it; remove it, so that it is made anew"]
    except OSError as error:
        return [f"{error.filename}: {error.strerror}; {right}"]
    return []


def _tenants_problems(file: Path) -> list[str]:
    right = 'write {"tenants": [{"name": "acme", "keyHashes": ["sha256:<SHA-256 of an API key, in hex>"]}]} there'
    try:
        tenants.parse_tenants(file.read_text("utf-8"))
    except OSError as error:
        return [f"{file}: {error.strerror}; {right}"]
    except (UnicodeError, tenants.TenantsError) as error:
        return [f"{file}: {error}; {right}"]
    return []
