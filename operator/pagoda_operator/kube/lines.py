"""An answer of the API server that goes on: the lines of a watch.

Beside `transport.py` because it is the other way round: nothing is decided or written here, one answer takes minutes,
and what matters is that somebody notices when nothing comes any more.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration

from pagoda_operator.kube.errors import UnreachableError, error_of
from pagoda_operator.kube.transport import CALL_SECONDS

_MAX_LINE_BYTES = 8 << 20
_USER_AGENT = "pagoda-operator"


class KubeLines:
    """Reads line by line what the API server says to a GET."""

    def __init__(self, configuration: Configuration) -> None:
        configuration.client_session_kwargs = {"trust_env": False}
        self._client = ApiClient(configuration)
        self._client.user_agent = _USER_AGENT

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def read(self, path: str, query: Mapping[str, str], silence_seconds: float) -> AsyncGenerator[bytes, None]:
        """Yield lines until the server ends its answer.

        Raises:
            UnreachableError: no answer in time, or no line for `silence_seconds`.
            KubeError: the server refuses.
        """
        try:
            async with asyncio.timeout(CALL_SECONDS) as patience:
                response = await self._asked(path, query)
                async with response:
                    if response.status != 200:
                        raise error_of(response.status, {}, f"GET {path}")
                    held = bytearray()
                    patience.reschedule(asyncio.get_running_loop().time() + silence_seconds)
                    async for chunk in response.content.iter_any():
                        patience.reschedule(asyncio.get_running_loop().time() + silence_seconds)
                        held += chunk
                        *lines, held = held.split(b"\n")
                        if len(held) > _MAX_LINE_BYTES:
                            raise UnreachableError(f"GET {path}: a line of more than {_MAX_LINE_BYTES} bytes")
                        for line in lines:
                            yield bytes(line)
        except TimeoutError as error:
            raise UnreachableError(f"GET {path}: the API server has fallen silent") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UnreachableError(f"GET {path}: {type(error).__name__}: {error}") from error

    async def _asked(self, path: str, query: Mapping[str, str]) -> aiohttp.ClientResponse:
        method, url, headers, body, _ = await self._client.param_serialize(
            "GET",
            path,
            query_params=list(query.items()),
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CALL_SECONDS)  # the rest is `patience`
        answer = await self._client.call_api(method, url, headers, body, _request_timeout=timeout)
        response: aiohttp.ClientResponse = answer.response
        return response
