"""All engine pods and what each last said.

Pods come from their watch (`pod_seen`, `pod_gone`, `forget_others`); answers come from asking each pod on its schedule,
many at a time. A report is of the container that runs now: when the engine's
container is another one, what its predecessor said is gone.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pagoda_operator.scrape.alarm import Alarm
from pagoda_operator.scrape.answers import EngineAnswer
from pagoda_operator.scrape.ask import Ports, look_at
from pagoda_operator.scrape.instruments import ScrapeInstruments
from pagoda_operator.scrape.pod import EnginePod, annotated, read_pod
from pagoda_operator.scrape.report import PodReport, make_report
from pagoda_operator.scrape.schedule import Schedule
from pagoda_runtime.logs import fields

__all__ = ["Fleet", "PodReport"]

_log = logging.getLogger(__name__)

# Both lanes at full pace, a second's looks at once, all silent until the deadline, need 100, and another 20 while the
# deadline is late: no slow pod takes a place from another.
MAX_CONCURRENT = 128

OnChange = Callable[[str, str], None]
OnPod = Callable[[EnginePod, PodReport | None], None]


class Fleet:
    """Every engine pod that the operator sees, asked while `run` runs."""

    def __init__(
        self,
        instruments: ScrapeInstruments,
        clock: Callable[[], float] = time.monotonic,
        ports: Ports | None = None,
    ) -> None:
        self._instruments = instruments
        self._clock = clock
        self._ports = ports or Ports()
        self._schedule = Schedule()
        self._pods: dict[str, EnginePod] = {}  # by uid
        self._pools: dict[tuple[str, str], set[str]] = {}
        self._reports: dict[str, PodReport] = {}
        self._told: dict[str, PodReport] = {}  # what each pool's status was last told of
        self._put_off: dict[str, tuple[str, Callable[[], Mapping[str, Any] | None]] | None] = {}  # pods being written
        self._expected: dict[tuple[str, str], tuple[int, str | None]] = {}
        self._on_change: list[OnChange] = []
        self._on_pod: list[OnPod] = []
        self._alarm = Alarm(clock)

    def watch(self, on_change: OnChange) -> None:
        """Have `on_change(namespace, pool)` called for whatever a status may care about.

        That is a report that has changed, and an event of a pod that brought more than annotations.
        """
        self._on_change.append(on_change)

    def watch_pods(self, on_pod: OnPod) -> None:
        """Have `on_pod` called with each pod that was asked or seen anew; without an address it is gone."""
        self._on_pod.append(on_pod)

    def report(self, namespace: str, pod_name: str, pod_uid: str) -> PodReport | None:
        """Return what the pod last said; None: it was not asked since its engine's container started."""
        pod = self._pods.get(pod_uid)
        if pod is None or (pod.namespace, pod.name) != (namespace, pod_name):
            return None
        return self._reports.get(pod_uid)

    def expect(self, namespace: str, pool: str, generation: int, nodes: str | None) -> None:
        """Have a pool's pods asked often until they follow live settings of `generation` and memcached's `nodes`."""
        key, expected = (namespace, pool), (generation, nodes)
        if self._expected.get(key) == expected:
            return  # a pool made anew begins at 1
        self._expected[key] = expected
        for uid in self._pools.get(key, ()):
            if (report := self._reports.get(uid)) is not None and not report.is_proven(*expected):
                self._schedule.ask_now(uid, self._clock())
        self._alarm.ring(self._schedule.next_at())

    def has_seen(self, uid: str, version: str) -> bool:
        """Whether a pod is known at this very version."""
        pod = self._pods.get(uid)
        return pod is not None and pod.resource_version == version

    def pod_seen(self, manifest: Mapping[str, Any]) -> None:
        """Take in a pod as it is now."""
        pod = read_pod(manifest)
        if pod is None:
            self._forget(manifest["metadata"]["uid"])
            return
        self._drop_put_off(pod.uid)
        before = self._pods.get(pod.uid)
        self._pods[pod.uid] = pod
        self._pools.setdefault(pod.key, set()).add(pod.uid)
        if before is None or before.container_id != pod.container_id:
            self._reports.pop(pod.uid, None)
        if not pod.can_answer:
            self._reports.pop(pod.uid, None)
            self._schedule.forget(pod.uid)
        elif before is None or _doors(before) != _doors(pod):
            self._schedule.ask_now(pod.uid, self._clock())
            self._alarm.ring(self._schedule.next_at())
        self._tell_pod(pod)
        if before is None or before.fingerprint != pod.fingerprint:
            self._tell_pool(pod.key)

    def put_off(self, uid: str, version: str, read: Callable[[], Mapping[str, Any] | None]) -> bool:
        """Take in a pod's event only after the write that is under way, if one is, and only if it is news by then.

        Most often it is what comes of that write; then nobody ever calls `read`.
        """
        if uid not in self._put_off:
            return False
        self._put_off[uid] = (version, read)
        return True

    @contextlib.contextmanager
    def being_written(self, uid: str) -> Iterator[None]:
        """Have events of a pod put off meanwhile, which is as long as one call may take."""
        self._put_off[uid] = None
        try:
            yield
        finally:
            event = self._put_off.pop(uid)
            if event is not None and not self.has_seen(uid, event[0]) and (manifest := event[1]()) is not None:
                self.pod_seen(manifest)

    def pod_annotated(self, before: EnginePod, version: str, annotations: Mapping[str, str]) -> None:
        """Take in what came of writing annotations onto a pod as it was `before`: all else is as it was."""
        pod = self._pods.get(before.uid)
        if pod is None or pod.resource_version != before.resource_version:
            return  # an event has brought what came of it, or more
        self._pods[pod.uid] = pod = annotated(pod, version, annotations)
        self._tell_pod(pod)

    def pod_gone(self, manifest: Mapping[str, Any]) -> None:
        """Forget a pod that was deleted."""
        self._forget(manifest["metadata"]["uid"])

    def forget_others(self, namespace: str | None, pod_uids: Collection[str]) -> None:
        """Forget all pods, of a namespace or of all, but those just listed: a watch may have missed an end."""
        gone = [uid for uid, pod in self._pods.items() if namespace in (None, pod.namespace) and uid not in pod_uids]
        for uid in gone:
            self._forget(uid)

    def take(self, uid: str, report: PodReport) -> None:
        """Take in what a look at a pod brought, unless another engine's container runs there by now."""
        pod = self._pods.get(uid)
        if pod is None or not pod.can_answer or pod.container_id != report.container_id:
            return
        self._reports[uid] = report
        if report.is_news(self._told.get(uid)):
            self._told[uid] = replace(report, hits="")
            _log.debug("a pod says something new %s", fields(namespace=pod.namespace, pod=pod.name))
            self._tell_pool(pod.key)
        self._tell_pod(pod)

    def __len__(self) -> int:
        return len(self._pods)

    async def run(self) -> None:
        """Ask pods for ever."""
        async with asyncio.TaskGroup() as looks:
            places = asyncio.Semaphore(MAX_CONCURRENT)
            async for pod in self._due():
                await places.acquire()
                look = looks.create_task(self._look(pod))
                look.add_done_callback(lambda _: places.release())

    async def _due(self) -> AsyncIterator[EnginePod]:
        while True:
            if (uid := self._schedule.take(self._clock())) is not None:
                yield self._pods[uid]
            else:
                await self._alarm.sleep_until(self._schedule.next_at())

    async def _look(self, pod: EnginePod) -> None:
        is_proven = False
        try:
            known = self._known(pod)
            answers = await look_at(pod, self._ports, known)
            self._instruments.count(answers, has_asked_engine=answers.engine is not known)
            report = make_report(answers, pod.container_id, self._clock())
            is_proven = report.is_proven(*self._expected_of(pod))
            self.take(pod.uid, report)
        except Exception:  # noqa: BLE001 - a task's outermost: one pod must not end the looks at all others
            _log.exception("a look at a pod failed %s", fields(namespace=pod.namespace, pod=pod.name))
        finally:
            self._schedule.answered(pod.uid, self._clock(), is_proven)
            self._alarm.ring(self._schedule.next_at())

    def _known(self, pod: EnginePod) -> EngineAnswer | None:
        """Return what the engine would say, where that is known without asking.

        An engine that has proven itself says the same until it is drained (then the pod is terminating), stops
        answering (then the kubelet's probe tells), is to follow other settings, or its sidecar tells it something new
        of the tiers (then the sidecar's own answer shows it).
        """
        report = self._reports.get(pod.uid)
        if report is None or not pod.is_ready or not report.is_proven(*self._expected_of(pod)):
            return None
        return EngineAnswer(True, report.generation, report.proof, "")

    def _expected_of(self, pod: EnginePod) -> tuple[int, str | None]:
        return self._expected.get(pod.key, (0, None))

    def _tell_pool(self, key: tuple[str, str]) -> None:
        for on_change in self._on_change:
            on_change(*key)

    def _tell_pod(self, pod: EnginePod) -> None:
        for on_pod in self._on_pod:
            on_pod(pod, self._reports.get(pod.uid))

    def _drop_put_off(self, uid: str) -> None:
        if uid in self._put_off:
            self._put_off[uid] = None  # a newer one has come

    def _forget(self, uid: str) -> None:
        self._drop_put_off(uid)
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        self._schedule.forget(uid)
        self._reports.pop(uid, None)
        self._told.pop(uid, None)
        others = self._pools[pod.key]
        others.discard(uid)
        if not others:
            del self._pools[pod.key]
            self._expected.pop(pod.key, None)
        self._tell_pod(replace(pod, address=None))
        self._tell_pool(pod.key)


def _doors(pod: EnginePod) -> tuple[object, ...]:
    """What makes a pod worth a look at once when it changes."""
    return pod.address, pod.container_id, pod.sidecar_id, pod.is_ready
