"""The watch of engine pods: list, then follow, for ever.

It is the fleet's own and not kopf's, because every write of an annotation comes back as an event. Twenty a second cost
kopf 5 % of a core (docs/decisions); here an event of a version that is known already is not even parsed.
"""

import asyncio
import contextlib
import functools
import json
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from pagoda_operator.kube.errors import GoneError, KubeError
from pagoda_operator.kube.glance import identity
from pagoda_operator.kube.kinds import POD, Kind
from pagoda_operator.names import ENGINE, MANAGER, PART_LABEL
from pagoda_operator.scrape.fleet import Fleet
from pagoda_runtime.deadlines import backoff
from pagoda_runtime.logs import fields

_log = logging.getLogger(__name__)

SELECTOR = f"app.kubernetes.io/managed-by={MANAGER},{PART_LABEL}={ENGINE}"
STREAM_SECONDS = 300  # after which the server ends a watch, and the next one goes on from there
SILENCE_SECONDS = 150.0  # the server sends a bookmark each minute
FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.5, 30.0
STEADY_SECONDS = 10.0  # what went on for so long may be begun again at once


class Lists(Protocol):
    """Who lists pods."""

    async def list(self, kind: Kind, namespace: str | None, selector: str = "") -> tuple[list[dict[str, Any]], str]:
        """Return all objects, and the version of the whole."""
        ...


class Lines(Protocol):
    """Who follows them."""

    def read(self, path: str, query: Mapping[str, str], silence_seconds: float) -> AsyncGenerator[bytes, None]:
        """Yield the lines of an answer."""
        ...


class PodWatch:
    """Tells a fleet of the engine pods of some namespaces, of all with none named."""

    def __init__(self, lists: Lists, lines: Lines, fleet: Fleet, namespaces: Sequence[str] = ()) -> None:
        self._lists = lists
        self._lines = lines
        self._fleet = fleet
        self._namespaces = tuple(namespaces)

    async def run(self) -> None:
        """Watch for ever."""
        async with asyncio.TaskGroup() as watches:
            for namespace in self._namespaces or (None,):
                watches.create_task(self._keep_watching(namespace))

    async def _keep_watching(self, namespace: str | None) -> None:
        version: str | None = None
        waits = backoff(FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        clock = asyncio.get_running_loop().time
        while True:
            began, has_failed = clock(), False
            try:
                if version is None:
                    version = await self._list(namespace)
                async for line in self._follow(namespace, version):
                    version = self._take(line) or version
            except GoneError:
                version = None  # too old to follow from: list again
            except KubeError as error:
                has_failed = True
                _log.warning("engine pods cannot be watched %s", fields(namespace=namespace or "all", error=error))
            is_steady = clock() - began >= STEADY_SECONDS
            if is_steady:
                waits = backoff(FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
            if has_failed or not is_steady:
                await asyncio.sleep(next(waits))

    async def _list(self, namespace: str | None) -> str:
        pods, version = await self._lists.list(POD, namespace, SELECTOR)
        for pod in pods:
            self._fleet.pod_seen(pod)
        self._fleet.forget_others(namespace, {pod["metadata"]["uid"] for pod in pods})
        return version

    async def _follow(self, namespace: str | None, version: str) -> AsyncGenerator[bytes, None]:
        query = {
            "watch": "true",
            "labelSelector": SELECTOR,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(STREAM_SECONDS),
        }
        async with contextlib.aclosing(self._lines.read(POD.path(namespace), query, SILENCE_SECONDS)) as lines:
            async for line in lines:
                yield line

    def _take(self, line: bytes) -> str | None:
        """Take in one event; return the version to go on from.

        Raises:
            GoneError: the server no longer knows the version that was followed from.
        """
        if line.startswith(b'{"type":"MODIFIED"') and (seen := identity(line)) is not None:
            uid, version = seen
            read = functools.partial(_pod_of, line)
            if self._fleet.has_seen(uid, version) or self._fleet.put_off(uid, version, read):
                return version
        try:
            event = json.loads(line)
            kind, found = event["type"], event["object"]
            if kind == "ERROR":
                raise GoneError(str(found.get("message")))
            version = str(found["metadata"]["resourceVersion"])
        except (ValueError, TypeError, KeyError) as error:
            raise GoneError("a line that is no event") from error
        if kind == "DELETED":
            self._fleet.pod_gone(found)
        elif kind != "BOOKMARK":
            self._fleet.pod_seen(found)
        return version


def _pod_of(line: bytes) -> Mapping[str, Any] | None:
    """Read the pod of an event that was put off; None: nobody can, and the pod stays as it was until the next."""
    try:
        pod: Mapping[str, Any] = json.loads(line)["object"]
    except (ValueError, TypeError, KeyError):
        _log.warning("an event of an engine pod cannot be read %s", fields(line=line[:256].decode(errors="replace")))
        return None
    return pod
