"""The live pods: for each its readiness, its hints, and the two tasks that keep them true.

One place starts and stops those tasks: `update`, called with all that a source of pods sees, and `close`.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from pagoda_router.hints import PodHints, keep_reading
from pagoda_router.instruments import Instruments
from pagoda_router.pods import Pod
from pagoda_router.readiness import Readiness, keep_polling
from pagoda_router.reservations import Book
from pagoda_router.sources import PodSource, Sighting
from pagoda_runtime.logs import fields

_log = logging.getLogger(__name__)

MAX_HINT_ROWS = 400_000  # of all pods together, about 100 MiB
_MIN_ROWS_PER_POD = 1024


@dataclass
class Member:
    """One live pod."""

    pod: Pod
    readiness: Readiness
    hints: PodHints
    withheld: str = ""
    """What its source says against sending there; empty: nothing."""
    tasks: tuple["asyncio.Task[None]", ...] = ()

    @property
    def is_ready(self) -> bool:
        """Whether requests may be sent there."""
        return self.readiness.is_ready and not self.withheld

    def withhold(self, reason: str) -> None:
        """Take note of what speaks against sending there; a change is one log line."""
        if bool(reason) != bool(self.withheld):
            _log.info("pod is %s %s", "withheld" if reason else "offered", fields(pod=self.pod.name, reason=reason))
        self.withheld = reason


class Fleet:
    """All live pods of a router."""

    def __init__(
        self,
        model_name: str,
        book: Book,
        instruments: Instruments,
        session: aiohttp.ClientSession,
        problem: Callable[[], str] = lambda: "",
    ) -> None:
        """`problem` says why nothing new is heard of pods."""
        self._problem = problem
        self._expected: list[Sighting] = []
        self._model_name = model_name
        self._book = book
        self._instruments = instruments
        self._session = session
        self._members: dict[Pod, Member] = {}
        self._stopping: set[asyncio.Task[None]] = set()

    @property
    def num_pods(self) -> int:
        """How many pods there are, ready or not."""
        return len(self._members)

    def ready(self) -> list[Member]:
        """Return the pods that requests may be sent to."""
        return [member for member in self._members.values() if member.is_ready]

    def reasons(self) -> str:
        """Return why each pod that is not ready is not, for people."""
        waiting = [member for member in self._members.values() if not member.is_ready]
        reasons = [f"{member.pod.name}: {member.withheld or member.readiness.reason}" for member in waiting]
        reasons += [f"{sighting.name}: {sighting.withheld}" for sighting in self._expected]
        if self._problem():
            reasons.append(f"pods are not found: {self._problem()}")
        return "; ".join(reasons) or "no pods are known"

    def get(self, pod: Pod) -> Member | None:
        """Return the member with exactly this record, if it is still there."""
        return self._members.get(pod)

    def update(self, sightings: Sequence[Sighting]) -> None:
        """Make the members those of `sightings`: one whose record is unchanged keeps all it has, others begin empty."""
        self._expected = [sighting for sighting in sightings if sighting.pod is None]
        withheld = {sighting.pod: sighting.withheld for sighting in sightings if sighting.pod is not None}
        pods = list(withheld)
        gone = [pod for pod in self._members if pod not in withheld]
        for pod in gone:
            self._stop(self._members.pop(pod))
            _log.info("pod is gone %s", fields(pod=pod.name, engine=pod.engine))
        capacity = max(_MIN_ROWS_PER_POD, MAX_HINT_ROWS // max(1, len(pods)))
        for member in self._members.values():
            member.hints.resize(capacity)
        for pod in pods:
            if pod not in self._members:
                self._members[pod] = self._start(pod, capacity)
                _log.info("pod is known %s", fields(pod=pod.name, engine=pod.engine, sidecar=pod.sidecar))
            self._members[pod].withhold(withheld[pod])

    async def close(self) -> None:
        """Stop following every pod."""
        self.update(())
        await asyncio.gather(*self._stopping, return_exceptions=True)

    def _start(self, pod: Pod, capacity: int) -> Member:
        hints = PodHints(self._model_name, capacity, lambda: self._book.num_outstanding(pod))
        member = Member(pod, Readiness(), hints)
        member.tasks = (
            asyncio.create_task(_for_ever(lambda: keep_polling(pod, member.readiness, self._session))),
            asyncio.create_task(_for_ever(lambda: keep_reading(pod, hints, self._session, lambda: self._show(member)))),
        )
        return member

    def _stop(self, member: Member) -> None:
        for task in member.tasks:
            task.cancel()
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)
        self._instruments.forget_pod(member.pod.name)

    def _show(self, member: Member) -> None:
        if self._members.get(member.pod) is member:
            self._instruments.hint_rows.set(member.hints.num_rows, pod=member.pod.name)
            self._instruments.hint_stream_up.set(member.hints.head is not None, pod=member.pod.name)


@contextlib.asynccontextmanager
async def following(fleet: Fleet, source: PodSource) -> AsyncIterator[None]:
    """Keep `fleet` equal to what `source` sees while the context is open; raises what the source's start raises."""
    try:
        async with source.following(fleet.update):
            yield
    finally:
        await fleet.close()


async def _for_ever(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `work` until cancelled: a bug in a pod's follower must cost that pod a second, not its hints for ever."""
    while True:
        try:
            await work()
        except Exception:  # noqa: BLE001 - a task's outermost loop
            _log.exception("a pod's follower failed and begins anew")
        await asyncio.sleep(1.0)
