"""The little of the Kubernetes API that a router speaks: list the pods of a selector, and watch them.

Rules: the one place that knows the client library, which is imported only where pods are found this way (it takes 24
MiB). Every question has a deadline; every failure leaves as a DiscoveryError with a reason that is a metric label.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import load_incluster_config, load_kube_config
from kubernetes.aio.config.config_exception import ConfigException

from pagoda_router.errors import DiscoveryError, StartError

CALL_SECONDS = 10.0
WATCH_SECONDS = 60  # then the server ends a watch and another one begins where it ended
SLACK_SECONDS = 15.0  # past that nobody is there any more
PAGE = 250
_MAX_LINE_BYTES = 8 << 20
_REASONS = {401: "unauthorized", 403: "forbidden", 410: "gone", 429: "throttled"}


@dataclass(frozen=True)
class PodEvent:
    """One line of a watch: ADDED, MODIFIED, DELETED or BOOKMARK, and the pod (of a bookmark its version alone)."""

    kind: str
    pod: Mapping[str, Any]


class PodApi:
    """The pods of one selector in one namespace."""

    def __init__(self, configuration: Configuration, namespace: str, selector: str) -> None:
        configuration.client_session_kwargs = {"trust_env": False}
        self._client = ApiClient(configuration)
        self._client.user_agent = "pagoda-router"
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._selector = selector

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def list(self) -> tuple[list[Mapping[str, Any]], str]:
        """Return all pods, and the version to watch from.

        Raises:
            DiscoveryError: there was no answer, or it was not that.
        """
        pods: list[Mapping[str, Any]] = []
        next_page = ""
        while True:
            query = {"limit": str(PAGE), **({"continue": next_page} if next_page else {})}
            async with _bounded(CALL_SECONDS), self._asked(query) as response:
                document = _object(await response.read())
            metadata = document.get("metadata")
            if not isinstance(metadata, dict) or not isinstance(items := document.get("items"), list):
                raise DiscoveryError("garbled", "the answer is no list of pods")
            pods += [item for item in items if isinstance(item, dict)]
            next_page = str(metadata.get("continue") or "")
            if not next_page:
                return pods, str(metadata.get("resourceVersion") or "")

    async def watch(self, version: str) -> AsyncGenerator[PodEvent, None]:
        """Yield what changes after `version`, for about a minute; first an empty bookmark, when it is open.

        Raises:
            DiscoveryError: it broke, or `version` is too old: list again.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        async with _bounded(WATCH_SECONDS + SLACK_SECONDS), self._asked(query) as response:
            yield PodEvent("BOOKMARK", {})
            async for line in _lines(response.content):
                yield _event(_object(line))

    @contextlib.asynccontextmanager
    async def _asked(self, query: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        """Ask, and yield the answer, whose body is not read yet."""
        method, url, headers, body, _ = await self._client.param_serialize(
            "GET",
            self._path,
            query_params=list({"labelSelector": self._selector, **query}.items()),
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CALL_SECONDS)  # the rest is `_bounded`'s
        async with asyncio.timeout(CALL_SECONDS):
            answer = await self._client.call_api(method, url, headers, body, _request_timeout=timeout)
        response: aiohttp.ClientResponse = answer.response
        async with response:
            if response.status != 200:
                async with asyncio.timeout(CALL_SECONDS):
                    raise _refusal(response.status, await response.content.read(4096))
            yield response


async def open_api(namespace: str, selector: str) -> PodApi:
    """Return the API as the pod's service account or, outside of a cluster, as `KUBECONFIG` says.

    Raises:
        StartError: there is neither.
    """
    configuration = Configuration()
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            load_incluster_config(client_configuration=configuration)
        else:
            path = os.environ.get("KUBECONFIG")  # which the library looks for only when it is imported
            await load_kube_config(config_file=path, client_configuration=configuration)
    except (ConfigException, OSError) as error:
        message = f"--pod-selector: neither a pod's service account nor a kubeconfig can be used: {error}"
        raise StartError(message) from error
    return PodApi(configuration, namespace, selector)


@contextlib.asynccontextmanager
async def _bounded(seconds: float) -> AsyncIterator[None]:
    """Give what is inside so long, and translate what the network does to it."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise DiscoveryError("unreachable", "the API server does not answer in time") from error
    except (aiohttp.ClientError, OSError) as error:
        raise DiscoveryError("unreachable", f"{type(error).__name__}: {error}") from error


async def _lines(content: aiohttp.StreamReader) -> AsyncGenerator[bytes, None]:
    held = bytearray()
    async for chunk in content.iter_any():
        held += chunk
        *lines, rest = held.split(b"\n")
        held = rest
        if len(held) > _MAX_LINE_BYTES:
            raise DiscoveryError("garbled", f"a line is longer than {_MAX_LINE_BYTES} bytes")
        for line in lines:
            if line.strip():
                yield bytes(line)


def _event(document: Mapping[str, Any]) -> PodEvent:
    kind, found = document.get("type"), document.get("object")
    if not isinstance(found, dict) or kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"):
        raise DiscoveryError("garbled", "a line of the watch is no event")
    if kind == "ERROR":
        code = found.get("code")
        raise _refusal(code if isinstance(code, int) else 500, json.dumps(found).encode())
    return PodEvent(kind, found)


def _refusal(status: int, body: bytes) -> DiscoveryError:
    try:
        said = str(_object(body).get("message") or "")[:500]
    except DiscoveryError:
        said = ""
    reason = _REASONS.get(status, "server_error" if status >= 500 else "refused")
    return DiscoveryError(reason, f"the API server answers {status}: {said}")


def _object(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise DiscoveryError("garbled", "the answer is no JSON") from error
    if not isinstance(document, dict):
        raise DiscoveryError("garbled", "the answer is no JSON object")
    return document
