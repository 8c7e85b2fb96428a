"""One request to the API server over `kubernetes.aio`'s client: connection pool, TLS and credentials are its matter.

Rules: every request has a deadline that counts from the call, the wait for a connection included. The fence is asked
when the connection is there and before the first byte goes out, as late as the client lets us: a process that slept in
between (SIGSTOP, a paused machine) must not send what it decided before. A request that was begun is waited for though
its caller was cancelled, so that `settled()` can say that nothing of ours is still on its way.
"""

import asyncio
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration

from pagoda_operator.kube.errors import UnreachableError

CALL_SECONDS = 10.0
_USER_AGENT = "pagoda-operator"


@dataclass(frozen=True)
class Request:
    """What is asked of the API server."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    content_type: str = "application/json"
    accept: str = "application/json"


@dataclass(frozen=True)
class Answer:
    """What it said."""

    status: int
    body: bytes

    @functools.cached_property
    def document(self) -> dict[str, Any]:
        """The body as JSON, parsed when it is first asked for; empty where it is no object."""
        try:
            document = json.loads(self.body)
        except ValueError:
            return {}
        return document if isinstance(document, dict) else {}


class Transport(Protocol):
    """Carries requests to an API server; tests put faults here."""

    async def send(self, request: Request) -> Answer:
        """Send once and return any answer.

        Raises:
            UnreachableError: there was none within the deadline; the request may have taken effect.
        """
        ...


class KubeTransport:
    """The real way to the API server."""

    def __init__(
        self,
        configuration: Configuration,
        fence: Callable[[], None] = lambda: None,
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        configuration.trace_configs = [_asking(fence)]
        configuration.client_session_kwargs = {"trust_env": False}
        self._client = ApiClient(configuration)
        self._client.user_agent = _USER_AGENT
        self._call_seconds = call_seconds
        self._under_way: set[asyncio.Task[Answer]] = set()

    async def close(self) -> None:
        """Close all connections."""
        await self.settled()
        await self._client.close()

    async def settled(self) -> bool:
        """Wait until no request is under way; return whether each of them had an answer."""
        answers = await asyncio.gather(*self._under_way, return_exceptions=True)
        return all(isinstance(answer, Answer) for answer in answers)

    async def send(self, request: Request) -> Answer:
        """Send once; the protocol says the rest."""
        task = asyncio.create_task(self._exchange(request))
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: "asyncio.Task[Answer]") -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may be gone, and nobody else asks

    async def _exchange(self, request: Request) -> Answer:
        try:
            async with asyncio.timeout(self._call_seconds):
                status, body = await self._send(request)
        except TimeoutError as error:
            raise UnreachableError(f"the API server did not answer within {self._call_seconds:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UnreachableError(f"the API server cannot be reached: {type(error).__name__}: {error}") from error
        return Answer(status, body)

    async def _send(self, request: Request) -> tuple[int, bytes]:
        method, url, headers, body, _ = await self._client.param_serialize(
            request.method,
            request.path,
            query_params=list(request.query.items()),
            header_params={"Accept": request.accept, "Content-Type": request.content_type},
            body=request.body,
            auth_settings=["BearerToken"],
        )
        response = await self._client.call_api(method, url, headers, body, _request_timeout=self._call_seconds)
        return response.status, await response.read()


def _asking(fence: Callable[[], None]) -> aiohttp.TraceConfig:
    async def ask(*_: object) -> None:
        fence()

    config = aiohttp.TraceConfig()
    config.on_connection_reuseconn.append(ask)
    config.on_connection_create_end.append(ask)
    return config
