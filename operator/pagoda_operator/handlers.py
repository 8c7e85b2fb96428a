"""What happens in the cluster, as triggers: kopf watches, and every event becomes a key on the queue.

Rules: kopf is used through `on.event` (and `on.login`) alone. Its other handlers would write finalizers and a copy of
the whole spec on the user's object and make deletion wait for us; nothing here returns a value, which kopf would write
into the status. So kopf reads and never writes. Children and pods are watched by label, on the server's side. Events of
pods that bring nothing but annotations, our own above all, trigger nothing.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import kopf

from pagoda_operator import names
from pagoda_operator.kube.client import connection
from pagoda_operator.kube.kinds import CHILDREN, POD, POOL, Kind
from pagoda_runtime.deadlines import backoff

_log = logging.getLogger(__name__)

OURS = f"app.kubernetes.io/managed-by={names.MANAGER}"
OTHER_PODS = f"{OURS},{names.PART_LABEL}!={names.ENGINE}"
"""Engine pods have a watch of their own, `scrape.pod_watch`."""
_REQUEST_SECONDS = 10.0
_END_SECONDS = 3.0
_STREAM_SECONDS = 300  # after which the server ends a watch, and the next one goes on from there
_PAGE = 200  # objects that are held at once while all are listed

Trigger = Callable[[str, str], None]


def make_registry(trigger: Trigger) -> kopf.OperatorRegistry:
    """Return kopf's registry with our few handlers: all they do is to call `trigger(namespace, pool)`."""
    registry = kopf.OperatorRegistry()
    looks = _Looks()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await connection()

    async def pool_changed(namespace: str | None, name: str | None, **_: Any) -> None:
        trigger(str(namespace), str(name))

    async def child_changed(namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        if pool := labels.get(names.POOL_LABEL):
            trigger(str(namespace), pool)

    async def pod_changed(event: Mapping[str, Any], namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        has_changed = looks.have_changed(event["object"], event["type"] == "DELETED")
        if has_changed and (pool := labels.get(names.POOL_LABEL)):
            trigger(str(namespace), pool)

    _watch(registry, POOL, pool_changed)
    for kind in CHILDREN:
        _watch(registry, kind, child_changed)
    _watch(registry, POD, pod_changed)
    return registry


class Waits(Iterable[float]):
    """How long kopf waits after each failure in a row of a list or a watch: without an end.

    It would end all of watching after some, and with it the process, because one kind may not be read for a minute.
    """

    def __iter__(self) -> Iterator[float]:
        return backoff(0.5, 30.0)


def make_settings() -> kopf.OperatorSettings:
    """Return kopf's settings: it writes nothing, looks for no peers and no CRDs, and every call of it ends."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.posting.loggers = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.process.ultimate_exiting_timeout = None
    settings.persistence.finalizer = f"{names.GROUP}/never-set"  # kopf removes what it takes for its own
    settings.networking.request_timeout = _REQUEST_SECONDS
    settings.networking.connect_timeout = _REQUEST_SECONDS
    settings.networking.error_backoffs = Waits()
    settings.watching.server_timeout = _STREAM_SECONDS
    settings.watching.chunk_size = _PAGE
    settings.queueing.idle_timeout = 1.0
    for kind in CHILDREN:
        settings.watching.label_selectors[_group(kind), _version(kind), kind.plural] = OURS
    settings.watching.label_selectors[_group(POD), _version(POD), POD.plural] = OTHER_PODS
    return settings


@contextlib.asynccontextmanager
async def watching(trigger: Trigger, namespaces: Sequence[str]) -> AsyncIterator["asyncio.Task[None]"]:
    """Watch while the context is open; the task ends only when watching has failed.

    kopf takes over the signals of the process when it starts: whoever needs them takes them back inside the context.
    """
    logging.getLogger("kopf").setLevel(logging.WARNING)
    tasks = await kopf.spawn_tasks(
        registry=make_registry(trigger),
        settings=make_settings(),
        clusterwide=not namespaces,
        namespaces=namespaces,
        standalone=True,
    )
    failing = asyncio.create_task(_first_end(tasks))
    try:
        yield failing
    finally:
        for task in (failing, *tasks):
            task.cancel()
        ended, _ = await asyncio.wait((failing, *tasks), timeout=_END_SECONDS)  # some of a failed kopf's never end
        await asyncio.gather(*ended, return_exceptions=True)


async def _first_end(tasks: Collection["asyncio.Task[Any]"]) -> None:
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        await task


def _watch(registry: kopf.OperatorRegistry, kind: Kind, handler: Callable[..., Any]) -> None:
    kopf.on.event(_group(kind), _version(kind), kind.plural, registry=registry, id=kind.plural)(handler)


def _group(kind: Kind) -> str:
    return kind.api_version.rpartition("/")[0]


def _version(kind: Kind) -> str:
    return kind.api_version.rpartition("/")[2]


class _Looks:
    """What pods looked like last, but for what a mere annotation changes."""

    def __init__(self) -> None:
        self._digests: dict[str, bytes] = {}

    def have_changed(self, pod: Mapping[str, Any], is_gone: bool) -> bool:
        metadata = pod["metadata"]
        if is_gone:
            self._digests.pop(metadata["uid"], None)
            return True
        ignored = ("annotations", "managedFields", "resourceVersion")
        rest = {key: value for key, value in metadata.items() if key not in ignored}
        look = json.dumps([rest, pod.get("spec"), pod.get("status")], sort_keys=True).encode()
        digest = hashlib.blake2b(look, digest_size=16).digest()
        before = self._digests.get(metadata["uid"])
        self._digests[metadata["uid"]] = digest
        return digest != before
