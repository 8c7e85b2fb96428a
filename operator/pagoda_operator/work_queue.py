"""Pools waiting to be reconciled: each at most once, never two at a time of one pool, a few pools at a time.

    add ──► waiting ──► running ──done──► (look again after n s) ──► waiting
                          │  ▲  added meanwhile: again at once
                          └──┴─ failed: again after a backoff that doubles with every failure in a row

Rules: whatever the trigger, the same work is done from what is then observed, so triggers add up to one. Work that
failed waits out its backoff even when its own writes brought new events: an object that cannot be reconciled must not
take the others' turns. A trigger that comes later, when it does not run, is worth a try at once.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from pagoda_operator.instruments import Instruments
from pagoda_operator.kube.errors import KubeError
from pagoda_runtime.logs import fields

_log = logging.getLogger(__name__)

Key = tuple[str, str]  # namespace and name of a pool
Work = Callable[[str, str], Awaitable[float | None]]
"""Does what there is to do for a pool; returns the seconds until it wants to look again, None: whenever."""


@dataclass(frozen=True)
class Pace:
    """How fast the queue works."""

    concurrency: int = 8
    """Pools at a time."""
    first_backoff: float = 0.25
    """Seconds after a first failure."""
    max_backoff: float = 60.0
    """Seconds after many."""


class WorkQueue:
    """The pools that are to be looked at; lives in one event loop."""

    def __init__(
        self,
        work: Work,
        instruments: Instruments,
        pace: Pace = Pace(),
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._work = work
        self._instruments = instruments
        self._pace = pace
        self._chance = chance
        self._waiting: dict[Key, None] = {}  # in order
        self._running: dict[Key, bool] = {}  # whether it was added meanwhile
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._known: set[Key] = set()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: Key) -> None:
        """Have a pool looked at as soon as there is a place."""
        self._instruments.queue_adds.add()
        self._known.add(key)
        if key in self._running:
            self._running[key] = True
        else:
            self._wait_in_line(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Have a pool looked at in a while, if nothing makes it sooner."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= loop.time() + seconds:
            return
        self._drop_timer(key)
        self._timers[key] = loop.call_later(seconds, self._is_due, key)

    def add_others(self, namespace: str | None, keys: Collection[Key]) -> None:
        """Have pools that are none of `keys`, all that there are, looked at once more: nobody may have seen them go."""
        gone = {key for key in self._known if namespace in (None, key[0])}.difference(keys)
        for key in gone:
            self.add(key)
        self._known -= gone

    async def run(self) -> None:
        """Work for ever. Work that is under way when this is cancelled is cancelled too: it can be cut off anywhere."""
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(self._pace.concurrency):
                    workers.create_task(self._keep_working())
        finally:
            for key in tuple(self._timers):
                self._drop_timer(key)

    def check_integrity(self) -> None:
        """Assert what always holds between two turns of the loop."""
        assert not self._waiting.keys() & self._running.keys(), "a pool waits and runs"
        assert not self._waiting.keys() & self._timers.keys(), "a pool waits twice"
        assert len(self._running) <= self._pace.concurrency, "more runs than may"

    def _wait_in_line(self, key: Key) -> None:
        self._drop_timer(key)
        self._waiting.setdefault(key)
        self._instruments.queue_depth.set(len(self._waiting))
        self._changed.set()

    def _is_due(self, key: Key) -> None:
        del self._timers[key]
        self.add(key)

    def _drop_timer(self, key: Key) -> None:
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()

    async def _keep_working(self) -> None:
        while True:
            key = await self._next()
            try:
                await self._work_on(key)
            finally:
                self._running.pop(key, None)

    async def _next(self) -> Key:
        while not self._waiting:
            self._changed.clear()
            await self._changed.wait()
        key = next(iter(self._waiting))
        del self._waiting[key]
        self._running[key] = False
        self._instruments.queue_depth.set(len(self._waiting))
        return key

    async def _work_on(self, key: Key) -> None:
        namespace, name = key
        with self._instruments.reconcile() as outcome:
            try:
                again_after = await self._work(namespace, name)
            except Exception as error:  # noqa: BLE001 - the task's outermost loop: one pool must not end all others
                outcome.result = error.code if isinstance(error, KubeError) else "Error"
                self._failed(key, error)
                return
            outcome.result = "Done"
        self._failures.pop(key, None)
        if self._running.pop(key):
            self._wait_in_line(key)
        elif again_after is not None:
            self.add_after(key, again_after)

    def _failed(self, key: Key, error: Exception) -> None:
        self._instruments.queue_retries.add()
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        wait = min(self._pace.max_backoff, self._pace.first_backoff * 2 ** min(failures - 1, 30))
        wait *= 0.5 + self._chance() / 2
        self.add_after(key, wait)
        told = fields(namespace=key[0], pool=key[1], failures=failures, again_after=wait, error=error)
        if isinstance(error, KubeError):
            _log.warning("reconciling failed %s", told)
        else:
            _log.error("reconciling failed %s", told, exc_info=error)
