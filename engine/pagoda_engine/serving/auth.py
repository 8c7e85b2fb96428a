"""Who a caller is: what its API key proves, and nothing that its request says.

Rules: everything that separates tenants (root of the chain, tag in records, scope of digests) comes from here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pagoda_engine.core.request import Crossing
from pagoda_engine.serving.errors import UnauthenticatedError
from pagoda_protocol.addresses import chain_addresses
from pagoda_protocol.tenants import SHARED_SCOPE, Tenants, crossing, tenant_root, tenant_tag


@dataclass(frozen=True)
class Caller:
    """Who asks, as its API key proved."""

    scope: str
    root: bytes  # 32
    tenant_tag: int


@dataclass(frozen=True)
class Chain:
    """What the blocks of one prompt follow on, and in whose name they are kept."""

    root: bytes  # 32
    tenant_tag: int
    crossing: Crossing | None = None

    def addresses(self, tokens: Sequence[int], block_tokens: int) -> list[bytes]:
        """Return the address of every full block of `tokens`, which begin with the prompt's."""
        if self.crossing is None:
            return chain_addresses(self.root, tokens, block_tokens)
        cut = self.crossing.block_index * block_tokens
        public = chain_addresses(self.root, tokens[:cut], block_tokens)
        return public + chain_addresses(self.crossing.root, tokens[cut:], block_tokens)


class Callers:
    """Turns `Authorization` headers into callers, and callers' prompts into chains."""

    def __init__(self, pool_secret: bytes, namespace: bytes, tenants: Callable[[], Tenants], block_tokens: int) -> None:
        """`tenants` returns the newest version of the tenants file."""
        self._pool_secret = pool_secret
        self._namespace = namespace
        self._tenants = tenants
        self._block_tokens = block_tokens
        self._shared = self._caller(SHARED_SCOPE)

    def identify(self, authorization: str | None) -> Caller:
        """Return who sent this header.

        Raises:
            UnauthenticatedError: it proves no known tenant, and keys are asked for.
        """
        scope = self._tenants().scope_of(authorization)
        if scope is None:
            reason = "Incorrect API key provided." if authorization else "No API key provided."
            raise UnauthenticatedError(f"{reason} Send a known one as 'Authorization: Bearer KEY'.")
        return self._caller(scope)

    def chain(self, caller: Caller, prompt: Sequence[int], num_public_tokens: int) -> Chain:
        """Return the chain of a prompt whose first `num_public_tokens` tokens come from a public text alone.

        Whole blocks of them are everybody's; a block with any other token is the caller's own.
        """
        num_blocks = num_public_tokens // self._block_tokens
        if not num_blocks:
            return Chain(caller.root, caller.tenant_tag)
        public = chain_addresses(self._shared.root, prompt[: num_blocks * self._block_tokens], self._block_tokens)
        root = crossing(self._pool_secret, self._namespace, public[-1], caller.scope)
        return Chain(self._shared.root, self._shared.tenant_tag, Crossing(num_blocks, root, caller.tenant_tag))

    def _caller(self, scope: str) -> Caller:
        return Caller(
            scope=scope,
            root=tenant_root(self._pool_secret, self._namespace, scope),
            tenant_tag=tenant_tag(self._pool_secret, scope),
        )
