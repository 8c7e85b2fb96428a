"""Pods as Kubernetes knows them: listed once, then watched, and listed again whenever that broke.

    list ──► watch ──ends by itself──► watch from there …
      ▲        └──410, disconnect, 403, silence──► counted, said, waited for ever longer ──┐
      └────────────────────────────────────────────────────────────────────────────────────┘

Kubernetes says who is there and what speaks against sending there; whether a pod answers is for its own `/ready`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pagoda_router.errors import DiscoveryError
from pagoda_router.instruments import Instruments
from pagoda_router.pods import Pod
from pagoda_router.sources import Show, Sighting
from pagoda_runtime.deadlines import backoff
from pagoda_runtime.logs import fields

if TYPE_CHECKING:
    from pagoda_router.kubernetes_api import PodEvent

_log = logging.getLogger(__name__)

ENGINE_CONTAINER = "engine"
ENGINE_PORT, SIDECAR_PORT = "http", "sidecar"
FIRST_WAIT_SECONDS, LAST_WAIT_SECONDS = 0.2, 30.0
STEADY_SECONDS = 10.0  # what worked for so long may be tried again soon
_ENDED = ("Failed", "Succeeded")


class Api(Protocol):
    """What is asked of the API server; each call raises DiscoveryError."""

    async def list(self) -> tuple[Sequence[Mapping[str, Any]], str]:
        """Return all pods, and the version to watch from."""
        ...

    def watch(self, version: str) -> "AsyncGenerator[PodEvent, None]":
        """Yield what changes after `version`; first an empty bookmark, when it is open."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class KubernetesPods:
    """A `PodSource`."""

    def __init__(self, open_api: Callable[[], Awaitable[Api]], instruments: Instruments) -> None:
        self.problem = "nobody has answered yet"
        self._open_api = open_api
        self._instruments = instruments
        self._pods: dict[str, Sighting] = {}  # by uid
        self._reason = ""  # of the failure that lasts
        self._show: Show = lambda sightings: None

    @contextlib.asynccontextmanager
    async def following(self, show: Show) -> AsyncIterator[None]:
        """Follow the pods in a task. An API server that cannot be reached keeps nobody from starting.

        Raises:
            StartError: it is not known how to reach one.
        """
        self._show = show
        api = await self._open_api()
        task = asyncio.create_task(self._follow(api))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await api.close()

    async def _follow(self, api: Api) -> None:
        waits = backoff(FIRST_WAIT_SECONDS, LAST_WAIT_SECONDS)
        while True:
            began = time.monotonic()
            try:
                await self._list_and_watch(api)
            except DiscoveryError as error:
                self._failed(error.reason, str(error))
            except Exception:  # noqa: BLE001 - the task's outermost loop: a bug must not end discovery for ever
                _log.exception("finding pods failed in a way it should not")
                self._failed("bug", "see the router's log")
            if time.monotonic() - began > STEADY_SECONDS:
                waits = backoff(FIRST_WAIT_SECONDS, LAST_WAIT_SECONDS)
            await asyncio.sleep(next(waits))

    async def _list_and_watch(self, api: Api) -> None:
        """Follow until it breaks."""
        found, version = await api.list()
        self._pods = {}
        for document in found:
            self._take(document)
        self._tell()
        waits = backoff(FIRST_WAIT_SECONDS, LAST_WAIT_SECONDS)
        while True:
            began = time.monotonic()
            async with contextlib.aclosing(api.watch(version)) as events:
                async for event in events:
                    self._worked()
                    version = _version(event.pod) or version
                    if event.kind != "BOOKMARK" and self._take(event.pod, is_gone=event.kind == "DELETED"):
                        self._tell()
            if time.monotonic() - began > STEADY_SECONDS:
                waits = backoff(FIRST_WAIT_SECONDS, LAST_WAIT_SECONDS)
            else:  # it should go on for a minute
                await asyncio.sleep(next(waits))

    def _take(self, document: Mapping[str, Any], is_gone: bool = False) -> bool:
        """Note what is known of one pod now; return whether that is something new."""
        uid = _text(document, "metadata", "uid")
        sighting = None if is_gone else sighting_of(document)
        former = self._pods.pop(uid, None)
        if sighting is not None:
            self._pods[uid] = sighting
        return sighting != former

    def _tell(self) -> None:
        self._show(sorted(self._pods.values(), key=lambda sighting: sighting.name))

    def _worked(self) -> None:
        if self._reason:
            self._instruments.discovery_degraded.remove(reason=self._reason)
            _log.info("pods are found again %s", fields(num_pods=len(self._pods)))
        self.problem = self._reason = ""

    def _failed(self, reason: str, message: str) -> None:
        """Count a failure, and say it unless it is the one that lasts. What is known of pods stays."""
        self._instruments.discovery_failures.add(reason=reason)
        if reason == "gone":  # asked too late for what is long past: a list mends it
            return
        if reason != self._reason:
            if self._reason:
                self._instruments.discovery_degraded.remove(reason=self._reason)
            self._instruments.discovery_degraded.set(1, reason=reason)
            _log.warning("pods are not found, the last ones stay %s", fields(reason=reason, why=message))
        self.problem, self._reason = message, reason


def sighting_of(document: Mapping[str, Any]) -> Sighting | None:
    """Return what a pod's object says of it; None if the pod has ended, or is none."""
    name = _text(document, "metadata", "name")
    phase = _text(document, "status", "phase")
    if not name or phase in _ENDED:
        return None
    host = _text(document, "status", "podIP")
    if not host:
        return Sighting(name, None, f"has no address yet (phase {phase or 'unknown'})")
    ports = _ports(document)
    missing = [port for port in (ENGINE_PORT, SIDECAR_PORT) if port not in ports]
    if missing:
        return Sighting(name, None, f"no container of it names a port {missing[0]!r}")
    engine, sidecar = (_address(host, ports[port]) for port in (ENGINE_PORT, SIDECAR_PORT))
    return Sighting(name, Pod(name, engine, sidecar, _text(document, "metadata", "uid")), _withheld(document))


def _withheld(document: Mapping[str, Any]) -> str:
    if _part(document, "metadata").get("deletionTimestamp"):
        return "is being deleted"
    statuses = _part(document, "status").get("containerStatuses")
    for status in statuses if isinstance(statuses, list) else ():
        if isinstance(status, dict) and status.get("name") == ENGINE_CONTAINER:
            return "" if status.get("ready") is True else "its engine is not ready for Kubernetes"
    return "its engine has no status yet"


def _ports(document: Mapping[str, Any]) -> dict[str, int]:
    """Return the ports by name, of init containers too: a native sidecar is one."""
    spec = _part(document, "spec")
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    listed = [port for container in containers for port in container.get("ports") or ()]
    return {port["name"]: port["containerPort"] for port in listed if "name" in port and "containerPort" in port}


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _version(document: Mapping[str, Any]) -> str:
    return _text(document, "metadata", "resourceVersion")


def _text(document: Mapping[str, Any], part: str, name: str) -> str:
    value = _part(document, part).get(name)
    return value if isinstance(value, str) else ""


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = document.get(name)
    return part if isinstance(part, dict) else {}
