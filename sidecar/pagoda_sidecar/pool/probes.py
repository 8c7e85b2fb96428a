"""Questions of existence that need not be sent: what the pool has just said it lacks, and what is being asked already.

    probe ──► lacks it, said less than `absent_seconds` ago? ──► asked already? wait for that answer ──► one exchange

Only an answer counts as an absence, never a node's silence. An absence is forgotten when we store the record or read
it, and at the latest `absent_seconds` after the question was sent, so another pod's record is hidden no longer than
that. An exchange goes on when whoever asked for it leaves: others may wait for it, and a dead node is to be found out.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from pagoda_runtime.metrics import Instrument

_log = logging.getLogger(__name__)

Answer = bool | None  # None: nobody answered
_Ask = Callable[[Sequence[bytes]], Awaitable[Sequence[Answer]]]


class _Exchange:
    """One question under way."""

    def __init__(self) -> None:
        self.addresses: list[bytes] = []
        self.answers: dict[bytes, Answer] = {}
        self.outdated: set[bytes] = set()  # stored or read since it was asked
        self.task: asyncio.Task[None] | None = None


class Probes:
    """All calls belong to one event loop."""

    def __init__(
        self,
        ask: _Ask,
        saved: Instrument,
        absent_seconds: float,
        max_absent: int,
        clock: Callable[[], float],
    ) -> None:
        """`saved` counts what was not asked, by reason: known_absent, shared."""
        self._ask = ask
        self._saved = saved
        self._absent_seconds = absent_seconds
        self._max_absent = max_absent
        self._clock = clock
        self._absent: dict[bytes, float] = {}  # until when
        self._batches: deque[tuple[float, list[bytes]]] = deque()  # what became absent together, oldest first
        self._asking: dict[bytes, _Exchange] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def probe(self, addresses: Sequence[bytes]) -> list[bool]:
        """Say for each address whether the pool has it; False where nobody answers."""
        now, new = self._clock(), _Exchange()
        exchanges = [self._exchange(address, now, new) for address in addresses]
        if new.addresses:
            new.task = asyncio.create_task(self._run(new))
            self._tasks.add(new.task)
            new.task.add_done_callback(self._ended)
        self._count(exchanges, new)
        tasks = {exchange.task for exchange in exchanges if exchange is not None and exchange.task is not None}
        if tasks:
            await asyncio.wait(tasks)
        return [
            exchange is not None and exchange.answers.get(address) is True
            for exchange, address in zip(exchanges, addresses, strict=True)
        ]

    def present(self, address: bytes) -> None:
        """The pool has `address` now: it was stored or read."""
        self._absent.pop(address, None)
        exchange = self._asking.get(address)
        if exchange is not None:
            exchange.outdated.add(address)

    def forget(self) -> None:
        """Ask anew for everything: nodes or the namespace changed."""
        self._absent.clear()
        self._batches.clear()
        for exchange in self._asking.values():
            exchange.outdated.update(exchange.addresses)
        self._asking.clear()

    async def finish(self, timeout_seconds: float) -> None:
        """Let what is being asked end, then end it."""
        tasks = tuple(self._tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout_seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a probe failed", exc_info=task.exception())

    def _exchange(self, address: bytes, now: float, new: _Exchange) -> _Exchange | None:
        """Return the exchange that answers for `address`, joining `new` if there is none; None when it is absent."""
        if self._absent.get(address, now) > now:
            return None
        exchange = self._asking.setdefault(address, new)
        if exchange is new and address not in new.answers:
            new.answers[address] = None
            new.addresses.append(address)
        return exchange

    async def _run(self, exchange: _Exchange) -> None:
        asked_at = self._clock()
        try:
            exchange.answers.update(zip(exchange.addresses, await self._ask(exchange.addresses), strict=True))
        finally:
            for address in exchange.addresses:
                if self._asking.get(address) is exchange:
                    del self._asking[address]
        lacking = [
            address
            for address, answer in exchange.answers.items()
            if answer is False and address not in exchange.outdated
        ]
        until = asked_at + self._absent_seconds
        self._absent.update(dict.fromkeys(lacking, until))
        self._batches.append((until, lacking))
        self._trim()

    def _trim(self) -> None:
        now = self._clock()
        while self._batches and (self._batches[0][0] <= now or len(self._absent) > self._max_absent):
            until, addresses = self._batches.popleft()
            for address in addresses:
                if self._absent.get(address) == until:  # neither found nor asked anew since
                    del self._absent[address]

    def _count(self, exchanges: Sequence[_Exchange | None], new: _Exchange) -> None:
        num_absent = sum(exchange is None for exchange in exchanges)
        num_shared = len(exchanges) - num_absent - len(new.addresses)
        if num_absent:
            self._saved.add(num_absent, reason="known_absent")
        if num_shared:
            self._saved.add(num_shared, reason="shared")
