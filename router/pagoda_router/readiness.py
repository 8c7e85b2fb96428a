"""Whether requests may be sent to a pod: its own `/ready`, asked often, and what its connections showed meanwhile.

A refusal or a 503 counts at once. An answer that does not come within the deadline counts only after several in a row:
an engine busy for a second would otherwise lose its traffic, and with it every other one that then gets it. Such a pod
hangs: requests that wait there for their first byte are told, as no closed connection will tell them.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from enum import Enum

import aiohttp

from pagoda_router.pods import Pod
from pagoda_runtime.logs import fields

_log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
POLL_DEADLINE_SECONDS = 1.0
MAX_TIMEOUTS = 3


class Answer(Enum):
    """What one poll found."""

    READY = "ready"
    NOT_READY = "not ready"
    TIMEOUT = "timeout"


class Readiness:
    """The state of one pod. Pure: polls and failures are told to it."""

    def __init__(self) -> None:
        self.is_ready = False
        self.reason = "not asked yet"
        self._num_failures = 0
        self._num_timeouts = 0
        self._watchers: list[Callable[[], None]] = []

    @contextlib.contextmanager
    def watched(self, on_hung: Callable[[], None]) -> Iterator[None]:
        """While the context is open, call `on_hung` at each poll that finds the pod hanging."""
        self._watchers.append(on_hung)
        try:
            yield
        finally:
            self._watchers.remove(on_hung)

    def begin_poll(self) -> int:
        """Return a token for `polled`."""
        return self._num_failures

    def polled(self, token: int, answer: Answer, reason: str = "") -> None:
        """Take a poll's answer; one that was asked before a later failure says nothing any more."""
        if token != self._num_failures:
            return
        if answer is Answer.TIMEOUT:
            self._num_timeouts += 1
            if self._num_timeouts >= MAX_TIMEOUTS:
                self.is_ready, self.reason = False, reason
                for on_hung in tuple(self._watchers):
                    on_hung()
            return
        self._num_timeouts = 0
        self.is_ready, self.reason = answer is Answer.READY, reason

    def failed(self, reason: str) -> None:
        """Take the failure of a request: not ready until a poll that begins later says otherwise."""
        self._num_failures += 1
        self.is_ready, self.reason = False, reason


async def keep_polling(
    pod: Pod, readiness: Readiness, session: aiohttp.ClientSession, poll_seconds: float = POLL_SECONDS
) -> None:
    """Poll `pod` for ever; a change is one log line."""
    while True:
        was_ready = readiness.is_ready
        token = readiness.begin_poll()
        answer, reason = await _ask(pod, session)
        readiness.polled(token, answer, reason)
        if readiness.is_ready != was_ready:
            state = "ready" if readiness.is_ready else "not ready"
            _log.info("pod is %s %s", state, fields(pod=pod.name, reason=readiness.reason or "-"))
        await asyncio.sleep(poll_seconds)


async def _ask(pod: Pod, session: aiohttp.ClientSession) -> tuple[Answer, str]:
    timeout = aiohttp.ClientTimeout(total=POLL_DEADLINE_SECONDS)
    try:
        async with session.get(f"http://{pod.engine}/ready", timeout=timeout, allow_redirects=False) as response:
            if response.status == 200:
                return Answer.READY, ""
            return Answer.NOT_READY, f"/ready answered {response.status}"
    except TimeoutError:
        return Answer.TIMEOUT, f"/ready did not answer within {POLL_DEADLINE_SECONDS:g} s"
    except (aiohttp.ClientError, OSError) as error:
        return Answer.NOT_READY, f"/ready cannot be reached: {type(error).__name__}"
