"""Who may share a block with whom: secrets, scopes, tenant roots.

A scope is who the caller authenticated as, never what a request's body says. A block's chain starts at the root of its
scope, so a block of one tenant has no address that another tenant could compute.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

POOL_SECRET_BYTES = 32
POOL_SECRET_KEY = "pool"  # the key inside the pool secret object, and the file name where it is mounted
DIGEST_SECRET_KEY = "digest"
TENANTS_KEY = "tenants.json"

# The scope of every caller when no API keys are configured.
ANONYMOUS_SCOPE = "anonymous"
# The scope of registered public prefixes. (A tenant's scope begins with "tenant:", so nobody else can have it.)
SHARED_SCOPE = "shared"
# The scope of what an engine stores to prove that its tiers work: no caller's, for the same reason.
PROOF_SCOPE = "proof"

_REQUIRED = frozenset({"name", "keyHashes"})
_SHARES = ("ramShare", "diskShare")


class TenantsError(ValueError):
    """The tenants file is not what it should be; the message names the field."""


def digest_secret(pool_secret: bytes) -> bytes:
    """Derive the 32-byte key of prefix digests. A router gets this one and never the pool secret."""
    return hmac.new(pool_secret, b"digest", hashlib.sha256).digest()


def tenant_root(pool_secret: bytes, namespace: bytes, scope: str) -> bytes:
    """Return the 32-byte value that the chain of `scope` starts from."""
    _check_length("namespace", namespace)
    return hmac.new(pool_secret, b"root" + namespace + scope.encode(), hashlib.sha256).digest()


def crossing(pool_secret: bytes, namespace: bytes, address: bytes, scope: str) -> bytes:
    """Return the chain value after a public prefix that ends at `address`, for what `scope` appends to it."""
    _check_length("namespace", namespace)
    _check_length("address", address)
    return hmac.new(pool_secret, b"cross" + namespace + address + scope.encode(), hashlib.sha256).digest()


def tenant_tag(pool_secret: bytes, scope: str) -> int:
    """Return the u64 that stands for `scope` in record headers, where a name must not stand in clear."""
    return int.from_bytes(hmac.new(pool_secret, b"tag" + scope.encode(), hashlib.sha256).digest()[:8], "little")


def admin_token(pool_secret: bytes) -> str:
    """Return what a caller must show to change an engine's state over HTTP: 64 hex digits."""
    return hmac.new(pool_secret, b"admin", hashlib.sha256).hexdigest()


def key_hash(api_key: str) -> str:
    """Return how an API key is written in the tenants file: `sha256:` and 64 hex digits.

    Total: a header's bytes that are no UTF-8 come as lone surrogates, and are a key that nobody has.
    """
    return "sha256:" + hashlib.sha256(api_key.encode(errors="surrogatepass")).hexdigest()


@dataclass(frozen=True)
class TenantShares:
    """The most of each tier that a tenant's blocks may hold, above 0 and at most 1 (no cap)."""

    ram: float = 1.0
    disk: float = 1.0


@dataclass(frozen=True)
class Tenants:
    """The callers a pool knows, by the hash of their API key. `Tenants()` asks for no key."""

    scopes_by_key_hash: Mapping[str, str] = field(default_factory=dict)
    is_closed: bool = False
    """True: a key is asked for even when nobody has one, so that a file without tenants lets nobody in."""
    shares: Mapping[str, TenantShares] = field(default_factory=dict)
    """By scope, of every tenant."""

    def scope_of(self, authorization: str | None) -> str | None:
        """Return the scope that an `Authorization` header proves, or None if it proves none."""
        if not self.scopes_by_key_hash and not self.is_closed:
            return ANONYMOUS_SCOPE
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return None
        return self.scopes_by_key_hash.get(key_hash(token.strip()))


def parse_tenants(text: str) -> Tenants:
    """Read `{"tenants": [{"name": "acme", "keyHashes": ["sha256:…"], "ramShare": 0.5, "diskShare": 0.5}]}`.

    The shares may be left out. No message holds a name or a hash: these messages stand in logs.

    Raises:
        TenantsError: naming the field that is wrong.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TenantsError(f"tenants file: not JSON: {error}") from error
    if not isinstance(document, dict) or set(document) != {"tenants"} or not isinstance(document["tenants"], list):
        raise TenantsError('tenants file: expected one object with the list "tenants"')
    scopes: dict[str, str] = {}
    shares: dict[str, TenantShares] = {}
    for index, entry in enumerate(document["tenants"]):
        path = f"tenants[{index}]"
        if not isinstance(entry, dict) or not _REQUIRED <= set(entry) <= _REQUIRED | set(_SHARES):
            raise TenantsError(
                f'{path}: expected the fields "name" and "keyHashes", and perhaps "ramShare", "diskShare"'
            )
        scope = f"tenant:{_name(entry['name'], path)}"
        if scope in shares:
            raise TenantsError(f"{path}.name: another entry has the same name")
        shares[scope] = TenantShares(*(_share(entry, name, path) for name in _SHARES))
        for position, value in enumerate(_key_hashes(entry["keyHashes"], path)):
            if value in scopes:
                raise TenantsError(f"{path}.keyHashes[{position}]: the same key is there twice")
            scopes[value] = scope
    return Tenants(scopes, is_closed=True, shares=shares)


def _name(value: Any, path: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= 253 or not value.isprintable():
        raise TenantsError(f"{path}.name: expected a string of 1 to 253 printable characters")
    return value


def _key_hashes(values: Any, path: str) -> list[str]:
    if not isinstance(values, list) or not values:
        raise TenantsError(f"{path}.keyHashes: expected a list with at least one hash")
    for position, value in enumerate(values):
        if not isinstance(value, str) or not _is_key_hash(value):
            raise TenantsError(f'{path}.keyHashes[{position}]: expected "sha256:" and 64 lower-case hex digits')
    return values


def _share(entry: Mapping[str, Any], name: str, path: str) -> float:
    value = entry.get(name, 1.0)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= 1:
        raise TenantsError(f"{path}.{name}: expected a number above 0 and at most 1")
    return float(value)


def _check_length(name: str, value: bytes) -> None:
    """Refuse a part whose length varies: concatenated with others it could spell another input."""
    if len(value) != 32:
        raise ValueError(f"{name}: expected 32 bytes, got {len(value)}")


def _is_key_hash(value: str) -> bool:
    scheme, _, digits = value.partition(":")
    return scheme == "sha256" and len(digits) == 64 and set(digits) <= set("0123456789abcdef")
