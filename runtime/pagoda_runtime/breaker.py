"""A circuit breaker: after some failures in a row a peer is left alone for a while, then probed by one call."""

import threading
import time
from collections.abc import Callable
from enum import Enum


class BreakerState(Enum):
    """CLOSED lets calls through, OPEN none, HALF_OPEN one."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """Counts failures of one peer. Safe to use from several threads.

    Every `allow()` that answered True is followed by exactly one `succeeded()` or `failed()`.
    """

    def __init__(
        self, max_failures: int = 1, open_seconds: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_failures = max_failures
        self._open_seconds = open_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._opened_at: float | None = None
        self._is_probing = False

    @property
    def state(self) -> BreakerState:
        """What the next `allow()` would find."""
        with self._lock:
            return self._state()

    def allow(self) -> bool:
        """Whether a call may be made now; the one probe of a half-open breaker is thereby taken."""
        with self._lock:
            state = self._state()
            if state is BreakerState.CLOSED:
                return True
            if state is BreakerState.HALF_OPEN and not self._is_probing:
                self._is_probing = True
                return True
            return False

    def succeeded(self) -> None:
        """Record an answer: the peer is well."""
        with self._lock:
            self._failures, self._opened_at, self._is_probing = 0, None, False

    def failed(self) -> None:
        """Record a failure or a missed deadline."""
        with self._lock:
            self._failures += 1
            self._is_probing = False
            if self._failures >= self._max_failures:
                self._opened_at = self._clock()

    def _state(self) -> BreakerState:
        if self._opened_at is None:
            return BreakerState.CLOSED
        if self._clock() - self._opened_at < self._open_seconds:
            return BreakerState.OPEN
        return BreakerState.HALF_OPEN
