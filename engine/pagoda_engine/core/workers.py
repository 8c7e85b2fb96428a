"""Threads that make the blocking calls to the tiers. One pool per kind of work, so that no kind waits for another."""

import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pagoda_engine.core.tiers import TierClient, TierUnavailable
from pagoda_engine.model.interface import ModelRunner
from pagoda_runtime.logs import fields

_log = logging.getLogger(__name__)

Job = Callable[[], None]

QUIET_SECONDS = 60.0


class Workers(Protocol):
    """Runs jobs, in order of submission, somewhere that may block. A job never raises."""

    def submit(self, job: Job) -> None:
        """Queue a job."""

    def stop(self, timeout_seconds: float) -> None:
        """Run what is queued, then end the threads; give up waiting after `timeout_seconds`."""


@dataclass(frozen=True)
class TierAccess:
    """What a load or a store needs of the world."""

    client: TierClient
    runner: ModelRunner  # for its copies
    workers: Workers
    post: Callable[[Any], None]  # tells the engine's thread, from any thread, that a job has ended
    clock: Callable[[], float]


class Outage:
    """Logs the first of many failures in a row, and the end of them; one outage in `QUIET_SECONDS` at most.

    What fails and works in turns is told of now and then, with how often it failed meanwhile; metrics count it all.
    """

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._is_said = False  # the outage that lasts
        self._quiet_until = -math.inf
        self._num_unsaid = 0

    def failed(self, error: Exception) -> None:
        """A call has failed."""
        if not isinstance(error, TierUnavailable):
            _log.error("%s failed in a way no tier should", self._what, exc_info=error)
        elif self._is_said:
            return
        elif self._clock() < self._quiet_until:
            self._num_unsaid += 1
            return
        else:
            _log.warning("%s failed: %s %s", self._what, error, fields(num_unsaid_before=self._num_unsaid))
        self._is_said, self._num_unsaid = True, 0
        self._quiet_until = self._clock() + QUIET_SECONDS

    def worked(self) -> None:
        """A call has worked."""
        if self._is_said:
            _log.warning("%s works again", self._what)
        self._is_said = False


def reason_of(error: Exception) -> str:
    """The metric label of a failed call."""
    return error.reason if isinstance(error, TierUnavailable) else "error"


class ThreadWorkers:
    """Daemon threads, started with the first job."""

    def __init__(self, name: str, num_threads: int) -> None:
        self._name = name
        self._num_threads = num_threads
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, job: Job) -> None:
        """Queue a job."""
        if not self._threads:
            names = [f"{self._name}-{number}" for number in range(self._num_threads)]
            self._threads = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]
            for thread in self._threads:
                thread.start()
        self._queue.put(job)

    def stop(self, timeout_seconds: float) -> None:
        """Run what is queued, then end the threads; give up waiting after `timeout_seconds`."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(timeout_seconds / len(self._threads))
        self._threads = []

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                job()
            except Exception:  # noqa: BLE001 - a bug of ours, but not one to lose the thread for
                _log.exception("a tier job broke")
