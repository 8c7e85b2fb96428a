"""The secrets and tenants an engine is given as files: read once, or followed."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from pagoda_engine.serving.errors import StartError
from pagoda_protocol.tenants import TENANTS_KEY, Tenants, admin_token, parse_tenants
from pagoda_runtime.files import KeyFileError, LiveFile, read_pool_secret


class Keys:
    """What separates one pool from another and one tenant from another."""

    def __init__(self, secret_dir: Path, tenants_dir: Path | None) -> None:
        """Read everything once; without `tenants_dir` no API key is asked for.

        Raises:
            StartError: a file is missing or not what it should be.
        """
        try:
            self.pool_secret, self.digest_key = read_pool_secret(secret_dir)
            self._tenants = None if tenants_dir is None else LiveFile(tenants_dir / TENANTS_KEY, parse_tenants)
        except (KeyFileError, OSError, ValueError) as error:
            raise StartError(str(error)) from error

    @property
    def admin_token(self) -> str:
        """What a caller must show to change the engine's state."""
        return admin_token(self.pool_secret)

    def tenants(self) -> Tenants:
        """Return the newest tenants."""
        return Tenants() if self._tenants is None else self._tenants.value

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow the tenants file while the context is open."""
        if self._tenants is None:
            yield
            return
        async with self._tenants.following():
            yield
