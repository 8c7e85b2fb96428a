"""Writes what pods say of their caches onto them, slowly.

Each write is for the very version of the pod that the decision was made on: an engine's container that was replaced in
the meantime has made another version, and the write is refused.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from pagoda_operator.annotate.instruments import AnnotateInstruments
from pagoda_operator.annotate.turns import Change, Turns
from pagoda_operator.annotate.wanted import Annotations, bucket_steps, is_other_epoch, wanted_annotations
from pagoda_operator.kube.errors import ConflictError, GoneError, KubeError, RefusedError
from pagoda_operator.kube.kinds import POD, Kind
from pagoda_operator.names import ANNOTATIONS_MANAGER
from pagoda_operator.scrape import Fleet, PodReport
from pagoda_operator.scrape.alarm import Alarm
from pagoda_operator.scrape.pod import EnginePod
from pagoda_protocol.annotations import CACHE_EPOCH
from pagoda_runtime.deadlines import backoff
from pagoda_runtime.logs import fields

_log = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 1.0, 30.0


class Applies(Protocol):
    """The part of the API that is used here."""

    async def apply(self, kind: Kind, manifest: dict[str, Any], *, manager: str) -> dict[str, Any]:
        """Apply on the server's side and return what came of it."""
        ...

    async def apply_for_version(self, kind: Kind, manifest: dict[str, Any], *, manager: str) -> str:
        """Apply likewise and return the version of what came of it, which is much cheaper."""
        ...


class Annotator:
    """Keeps the annotations of the fleet's pods near what they say, while `run` runs."""

    def __init__(
        self,
        fleet: Fleet,
        api: Applies,
        instruments: AnnotateInstruments,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._api = api
        self._instruments = instruments
        self._clock = clock
        self._turns = Turns()
        self._behind: dict[str, tuple[EnginePod, Annotations]] = {}
        self._epochs: dict[str, str | None] = {}  # as last written, by uid
        self._alarm = Alarm(clock)
        fleet.watch_pods(self._on_pod)

    async def run(self) -> None:
        """Write for ever, one write after another."""
        waits = backoff(FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        while True:
            pod, wanted = self._behind.pop(await self._next())
            try:
                await self._write(pod, wanted)
            except (ConflictError, GoneError) as error:
                self._failed(error, pod, logging.DEBUG)  # an event of the pod is on its way and offers it again
            except RefusedError as error:
                self._failed(error, pod, logging.WARNING)
            except KubeError as error:
                self._failed(error, pod, logging.WARNING)
                await asyncio.sleep(next(waits))
            else:
                waits = backoff(FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)

    def _on_pod(self, pod: EnginePod, report: PodReport | None) -> None:
        self._line_up(pod, report)
        self._instruments.waiting.set(len(self._turns))

    def _line_up(self, pod: EnginePod, report: PodReport | None) -> None:
        if pod.address is None:
            self._behind.pop(pod.uid, None)
            self._turns.forget(pod.uid)
            self._epochs.pop(pod.uid, None)
            return
        if pod.written:
            self._turns.known_written(pod.uid, self._clock())
        wanted = wanted_annotations(pod, report)
        steps = 0 if wanted is None else bucket_steps(pod.written, wanted)
        if wanted is None or steps == 0:
            self._behind.pop(pod.uid, None)
            self._turns.settle(pod.uid)
        else:
            self._behind[pod.uid] = (pod, wanted)
            self._turns.wait(pod.uid, Change(self._is_urgent(pod, wanted), steps))
            self._alarm.ring(self._turns.next_at())

    def _is_urgent(self, pod: EnginePod, wanted: Annotations) -> bool:
        """Whether another epoch is to be written, unless we just did and somebody else keeps his own there."""
        is_tried = pod.uid in self._epochs and self._epochs[pod.uid] == wanted.get(CACHE_EPOCH)
        return is_other_epoch(pod.written, wanted) and not is_tried

    async def _next(self) -> str:
        while True:
            if (uid := self._turns.take(self._clock())) is not None:
                return uid
            await self._alarm.sleep_until(self._turns.next_at())

    async def _write(self, pod: EnginePod, wanted: Annotations) -> None:
        metadata = {
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
            "resourceVersion": pod.resource_version,
            "annotations": dict(wanted),
        }
        manifest = {"apiVersion": POD.api_version, "kind": POD.kind, "metadata": metadata}
        with self._fleet.being_written(pod.uid):
            version, written = await self._apply(manifest, wanted, pod.written)
            if self._fleet.has_seen(pod.uid, pod.resource_version):
                self._epochs[pod.uid] = wanted.get(CACHE_EPOCH)
                self._fleet.pod_annotated(pod, version, written)
        self._instruments.writes.add(outcome="written")

    async def _apply(
        self, manifest: dict[str, Any], wanted: Annotations, before: Annotations
    ) -> tuple[str, Annotations]:
        """Return the version and the annotations that came of it."""
        if before.keys() <= wanted.keys():
            return await self._api.apply_for_version(POD, manifest, manager=ANNOTATIONS_MANAGER), wanted
        # What we take away stays if it is another manager's too.
        came = (await self._api.apply(POD, manifest, manager=ANNOTATIONS_MANAGER))["metadata"]
        return came["resourceVersion"], came.get("annotations") or {}

    def _failed(self, error: KubeError, pod: EnginePod, level: int) -> None:
        self._instruments.writes.add(outcome=error.code)
        self._instruments.waiting.set(len(self._turns))  # what the pod says next lines it up again
        _log.log(level, "annotations not written: %s %s", error, fields(namespace=pod.namespace, pod=pod.name))
