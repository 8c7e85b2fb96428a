"""One client per pod of its sidecar's hint stream, and what may be believed of it at this moment.

A row is believed only while the stream that said it is open: at a disconnect the whole table goes, the next snapshot
brings back what still holds. Between the two the pod is routed to by load, and the reason says so.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import aiohttp

from pagoda_protocol.digests import DIGEST_VERSION
from pagoda_router.errors import HintError
from pagoda_router.messages import DEVICE, Epoch, Head, Load, Message, Quiet, Rows, parse_line
from pagoda_router.pods import Pod
from pagoda_router.table import HintTable
from pagoda_runtime.deadlines import backoff
from pagoda_runtime.logs import fields

_log = logging.getLogger(__name__)

SILENCE_SECONDS = 5.0
CONNECT_SECONDS = 2.0
REPORT_DELAY_SECONDS = 1.0  # for so long a report may be on its way
FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.1, 3.0
_MAX_LINE_BYTES = 8 << 20

# Why a pod's hints are not believed.
HINTS_DOWN = "no_hints"
DIGEST_VERSION_DIFFERS = "digest_version"
OTHER_MODEL = "other_model"
NO_ENGINE = "no_engine"


@dataclass(frozen=True)
class LoadReport:
    """A pod's last word on its work."""

    load: Load
    received_at: float
    others_seconds: float
    """The part of its work that was not ours, when the report came."""


class PodHints:
    """What is known of one pod. Pure but for the clock: lines are told to it."""

    def __init__(
        self,
        model_name: str,
        capacity: int,
        num_own: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model_name = model_name
        self._capacity = capacity
        self._num_own = num_own
        self._clock = clock
        self._ended_at: deque[float] = deque()
        self._sequence = 0
        self.head: Head | None = None
        self.table: HintTable | None = None
        self.report: LoadReport | None = None

    @property
    def num_rows(self) -> int:
        """How many digests are known."""
        return 0 if self.table is None else len(self.table)

    @property
    def degraded(self) -> str | None:
        """Why nothing is believed, as a decision's reason; None if the table is."""
        if self.head is None:
            return HINTS_DOWN
        if self.head.digest_version != DIGEST_VERSION:
            return DIGEST_VERSION_DIFFERS
        if not self.head.models:
            return NO_ENGINE
        return None if self._model_name in self.head.models else OTHER_MODEL

    def others_seconds(self) -> float:
        """Return the reported work that is not ours; work drains at one second per second since the report."""
        if self.report is None:
            return 0.0
        return max(0.0, self.report.others_seconds - (self._clock() - self.report.received_at))

    def request_ended(self) -> None:
        """Note that a request of ours has ended there: a report on its way may still count it."""
        self._ended_at.append(self._clock())
        self._forget_old_ends()

    def closed(self) -> None:
        """Forget all that the stream said, but for the pod's load and speed; the next one begins with a head."""
        self.head = self.table = None

    def resize(self, capacity: int) -> None:
        """Set how many rows may be kept, now and of later streams."""
        self._capacity = capacity
        if self.table is not None:
            self.table.resize(capacity)

    def feed(self, line: bytes) -> Message:
        """Take one line of the stream and return its content.

        Raises:
            HintError: the line is wrong or one before it is missing; the stream must be opened anew.
        """
        if self.degraded == DIGEST_VERSION_DIFFERS:
            return Quiet()  # its lines may have any form; the stream is kept so that its end is seen
        sequence, message = parse_line(line)
        if self.table is None:
            if not isinstance(message, Head):
                raise HintError("type: the first line is not a head")
        elif isinstance(message, Head):
            raise HintError("type: a second head")
        elif sequence != self._sequence + 1:
            raise HintError(f"sequence: expected {self._sequence + 1}, found {sequence}")
        self._sequence = sequence
        self._take(message)
        return message

    def _take(self, message: Message) -> None:
        match message:
            case Head():
                self.head, self.table = message, HintTable(message, self._capacity)
            case Rows() | Epoch():
                assert self.table is not None
                self.table.apply(message)
                if isinstance(message, Epoch) and message.tier == DEVICE and self.report is not None:
                    # Another engine, or none: its predecessor's work is gone, its speed is still the best guess.
                    self.report = LoadReport(self.report.load, self._clock(), 0.0)
            case Load():
                self.report = LoadReport(message, self._clock(), self._others(message))
            case Quiet():
                pass

    def _others(self, load: Load) -> float:
        """Return which part of a report is not ours, by number of requests.

        Not by seconds: a pod and its router predict the same request differently, and the difference would look like
        somebody else's work and drive the next turn of a conversation away from its prefix.
        """
        self._forget_old_ends()
        num_others = load.num_requests - self._num_own() - len(self._ended_at)
        return load.outstanding_seconds * num_others / load.num_requests if num_others > 0 else 0.0

    def _forget_old_ends(self) -> None:
        while self._ended_at and self._ended_at[0] < self._clock() - REPORT_DELAY_SECONDS:
            self._ended_at.popleft()


async def keep_reading(
    pod: Pod, hints: PodHints, session: aiohttp.ClientSession, on_change: Callable[[], None] = lambda: None
) -> None:
    """Read the hint stream of `pod` for ever, connecting anew with backoff whenever it ends."""
    waits = backoff(FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
    while True:
        try:
            await _read_stream(pod, hints, session, on_change)
            reason = "ended"
        except TimeoutError:
            reason = "silent"
        except HintError as error:
            reason = str(error)
        except (aiohttp.ClientError, OSError) as error:
            reason = type(error).__name__
        was_open = hints.head is not None
        hints.closed()
        on_change()
        _log.log(logging.INFO if was_open else logging.DEBUG, "no hint stream %s", fields(pod=pod.name, reason=reason))
        if was_open:  # it worked: the next failure is a new one
            waits = backoff(FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        await asyncio.sleep(next(waits))


async def _read_stream(
    pod: Pod, hints: PodHints, session: aiohttp.ClientSession, on_change: Callable[[], None]
) -> None:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
    url = f"http://{pod.sidecar}/v1/prefixes"
    async with (
        asyncio.timeout(SILENCE_SECONDS) as silence,
        session.get(url, timeout=timeout, allow_redirects=False) as response,
        contextlib.aclosing(_lines(response.content)) as lines,
    ):
        if response.status != 200:
            raise HintError(f"/v1/prefixes answered {response.status}")
        async for line in lines:
            silence.reschedule(asyncio.get_running_loop().time() + SILENCE_SECONDS)
            message = hints.feed(line)
            on_change()
            if isinstance(message, Head):
                _log.info("hint stream open %s", fields(pod=pod.name, believed=hints.degraded or "yes"))


async def _lines(content: aiohttp.StreamReader) -> AsyncGenerator[bytes, None]:
    """Yield whole lines; the reader's own `readline` refuses long ones. Other tasks get a turn after each."""
    held = bytearray()
    async for chunk in content.iter_any():
        held += chunk
        *lines, rest = held.split(b"\n")
        held = rest
        if len(held) > _MAX_LINE_BYTES:
            raise HintError(f"line: longer than {_MAX_LINE_BYTES} bytes")
        for line in lines:
            yield bytes(line)
            await asyncio.sleep(0)
