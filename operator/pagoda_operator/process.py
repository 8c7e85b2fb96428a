"""One operator process, from its start to its end.

    candidate: health and metrics ──Lease──► leader: watches, queue, resync, scrapes, annotations
                                                │ SIGTERM: work is cut off, its calls end, the Lease is free, exit 0
                                                │ Lease lost: the process ends on the spot, exit 75
                                                └ a part failed: it is logged, the Lease is free, exit 1

Rules: nothing that reads or writes pools exists before the Lease is held, and nothing of it outlives it within this
process: a former leader never becomes a candidate again.
"""

import asyncio
import contextlib
import functools
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from pagoda_operator.arguments import Settings
from pagoda_operator.handlers import watching
from pagoda_operator.health import application
from pagoda_operator.instruments import Instruments
from pagoda_operator.kube.api import Api
from pagoda_operator.kube.client import configuration
from pagoda_operator.kube.election import Election
from pagoda_operator.kube.errors import KubeError, NotServedError
from pagoda_operator.kube.fence import Fence
from pagoda_operator.kube.kinds import POOL
from pagoda_operator.kube.lease import Terms
from pagoda_operator.kube.transport import CALL_SECONDS, KubeTransport
from pagoda_operator.work_queue import Work, WorkQueue
from pagoda_runtime.deadlines import backoff
from pagoda_runtime.logs import fields
from pagoda_runtime.metrics import Metrics
from pagoda_runtime.stop import stop_on_signals
from pagoda_runtime.web import serving

_log = logging.getLogger(__name__)

RESYNC_SECONDS = 600.0


@dataclass(frozen=True)
class Parts:
    """What a leader does, made when it leads."""

    work: Work
    """What the queue calls for each pool."""
    watch: Callable[[Callable[[str, str], None]], None]
    """Tells whom to call when something else than the API server says that a pool is to be looked at."""
    background: Sequence[Callable[[], Coroutine[Any, Any, None]]]
    """What runs beside the queue, for ever."""


MakeParts = Callable[[Settings, Api, Metrics], Parts]


async def run(settings: Settings, make_parts: MakeParts, make_fence: Callable[[], Fence] = Fence) -> None:
    """Run until SIGTERM.

    Raises:
        StartError: the API server's address or our credentials are not known.
        PortTakenError: the port is in use.
    """
    metrics = Metrics()
    instruments = Instruments(metrics)
    fence, terms, identity = make_fence(), Terms(), f"{settings.name}_{secrets.token_hex(4)}"
    instruments.leader.set(0)
    async with (
        _connected(lambda: None, terms.call) as lease_transport,
        _connected(fence.check, CALL_SECONDS) as transport,
    ):
        lease_api = Api(lease_transport, identity, instruments.count_call)
        election = Election(lease_api, fence, settings.lease_namespace, settings.lease_name, identity, terms)
        app = application(metrics, lambda: election.problem)
        with stop_on_signals() as stop:
            async with serving(app, settings.host, settings.port) as port:
                _log.info("serving %s", fields(host=settings.host, port=port, identity=identity))
                if not await _unless(stop, election.acquire()):
                    return
                instruments.leader.set(1)
                api = Api(transport, identity, instruments.count_call)
                try:
                    async with _beside(fence.watch, election.hold):
                        await _lead(settings, api, make_parts(settings, api, metrics), instruments, stop)
                finally:
                    if await transport.settled():
                        await election.release()


async def _lead(settings: Settings, api: Api, parts: Parts, instruments: Instruments, stop: asyncio.Event) -> None:
    """Do a leader's work until SIGTERM; raise what a part of it failed with."""
    if not await _unless(stop, _until_served(api, settings.namespaces)):
        return
    queue = WorkQueue(parts.work, instruments)

    def trigger(namespace: str, pool: str) -> None:
        queue.add((namespace, pool))

    parts.watch(trigger)
    resync = functools.partial(_keep_resyncing, api, settings.namespaces, queue)
    async with (
        watching(trigger, settings.namespaces) as watch,
        _beside(queue.run, resync, *parts.background) as beside,
    ):
        with stop_on_signals() as stop_too:  # once more: kopf has taken the signals
            async with _beside(stop.wait, stop_too.wait) as stops:
                await _first(watch, *beside, *stops)


@contextlib.asynccontextmanager
async def _connected(fence: Callable[[], None], call_seconds: float) -> AsyncIterator[KubeTransport]:
    transport = KubeTransport(await configuration(), fence, call_seconds)
    try:
        yield transport
    finally:
        await transport.close()


async def _unless(stop: asyncio.Event, waiting: Coroutine[Any, Any, None]) -> bool:
    """Wait for the end of `waiting` and return True, or for `stop` and return False."""
    task = asyncio.create_task(waiting)
    async with _beside(stop.wait) as stops:
        try:
            await _first(task, *stops)
            return task.done()
        finally:
            await _cancel((task,))


async def _until_served(api: Api, namespaces: Sequence[str]) -> None:
    """Wait until the API server knows what a pool is: kopf would watch nothing, quietly, for ever."""
    waits = backoff(1.0, 30.0)
    while True:
        try:
            await api.list(POOL, next(iter(namespaces), None))
            return
        except NotServedError:
            _log.warning("the cluster does not know InferencePools yet: install the chart pagoda-crds")
        except KubeError as error:
            _log.warning("pools cannot be listed %s", fields(error=error))
        await asyncio.sleep(next(waits))


async def _keep_resyncing(api: Api, namespaces: Sequence[str], queue: WorkQueue) -> None:
    """Have every pool looked at now and then, though nothing seems to have happened; a watch can miss things."""
    while True:
        await asyncio.sleep(RESYNC_SECONDS)
        for namespace in namespaces or (None,):
            try:
                pools, _ = await api.list(POOL, namespace)
            except KubeError as error:
                _log.warning("pools cannot be listed %s", fields(error=error))
                continue
            keys = [(pool["metadata"]["namespace"], pool["metadata"]["name"]) for pool in pools]
            for number, key in enumerate(keys):
                queue.add_after(key, RESYNC_SECONDS / 2 * number / len(keys))
            queue.add_others(namespace, keys)


@contextlib.asynccontextmanager
async def _beside(*parts: Callable[[], Coroutine[Any, Any, Any]]) -> AsyncIterator[Sequence["asyncio.Task[Any]"]]:
    """Run coroutines beside the context's body, and end them with it."""
    tasks = [asyncio.create_task(part()) for part in parts]
    try:
        yield tasks
    finally:
        await _cancel(tasks)


async def _first(*tasks: "asyncio.Task[Any]") -> None:
    """Wait for the first of them to end; raise what it raised."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        await task


async def _cancel(tasks: Sequence["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
