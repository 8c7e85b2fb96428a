"""Who a caller is: what its API key proves, and nothing that its request says.

Rules: everything that separates tenants (root of the chain, tag in records, scope of digests) comes from here.
"""

from collections.abc import Callable

from pagoda_engine.serving.errors import UnauthenticatedError
from pagoda_engine.serving.generation import Caller
from pagoda_protocol.tenants import Tenants, tenant_root, tenant_tag


class Callers:
    """Turns `Authorization` headers into callers."""

    def __init__(self, pool_secret: bytes, namespace: bytes, tenants: Callable[[], Tenants]) -> None:
        """`tenants` returns the newest version of the tenants file."""
        self._pool_secret = pool_secret
        self._namespace = namespace
        self._tenants = tenants

    def identify(self, authorization: str | None) -> Caller:
        """Return who sent this header.

        Raises:
            UnauthenticatedError: it proves no known tenant, and keys are asked for.
        """
        scope = self._tenants().scope_of(authorization)
        if scope is None:
            reason = "Incorrect API key provided." if authorization else "No API key provided."
            raise UnauthenticatedError(f"{reason} Send a known one as 'Authorization: Bearer KEY'.")
        return Caller(
            scope=scope,
            root=tenant_root(self._pool_secret, self._namespace, scope),
            tenant_tag=tenant_tag(self._pool_secret, scope),
        )
