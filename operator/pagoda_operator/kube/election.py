"""Who leads: one candidate's part in the Lease.

    acquire() ──the Lease was free, or its holder showed no life──► lead ──hold(): renew every 2.5 s──► …
                                                                     │              └── 8 s without: the fence ends it
                                                                     └── graceful end ──► release()

Rules: a renewal counts from the moment before it was sent, never from its answer. Every call has a deadline below the
time between two tries, so a call that hangs can't hide that time passes. Every write carries the version that was read:
of two candidates that see the same free Lease one is refused. Whoever finds another holder in the Lease ends at once.
A Lease that is gone is made anew by its holder; others wait for as long as for a holder that shows no life, or, where
they have seen none, for as long as one may write.
"""

import asyncio
import datetime
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

from pagoda_operator.kube.api import Api
from pagoda_operator.kube.errors import ConflictError, KubeError
from pagoda_operator.kube.fence import Fence, end_process, now_seconds
from pagoda_operator.kube.kinds import LEASE, Manifest
from pagoda_operator.kube.lease import Sight, Terms, claim, give_up
from pagoda_runtime.logs import fields

_log = logging.getLogger(__name__)


class Election:
    """One candidate, for one life of a process.

    `api` is one without the fence, and its calls end within `terms.call`.
    """

    def __init__(
        self,
        api: Api,
        fence: Fence,
        namespace: str,
        name: str,
        identity: str,
        terms: Terms = Terms(),  # noqa: B008 - frozen
        clock: Callable[[], float] = now_seconds,
        end: Callable[[str], NoReturn] = end_process,
    ) -> None:
        self._api = api
        self._fence = fence
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._terms = terms
        self._clock = clock
        self._end = end
        self._sight = Sight()
        self._lease: Manifest | None = None  # as it is after our newest write; None: read it first
        self._answered_at: float | None = None
        self._problem = "the API server was not asked yet"

    @property
    def problem(self) -> str:
        """Why the Lease cannot be read or written, empty while it can."""
        answered = self._answered_at is not None and self._clock() - self._answered_at < self._terms.lease
        return "" if answered else self._problem

    async def acquire(self) -> None:
        """Wait until this process leads."""
        while True:
            wait = await self._attempt(self._try_to_acquire)
            if wait is None:
                _log.info("leading %s", fields(lease=f"{self._namespace}/{self._name}", identity=self._identity))
                return
            await asyncio.sleep(wait)

    async def hold(self) -> NoReturn:
        """Renew for ever; the fence says when it has failed for too long."""
        next_at = self._clock()
        while True:
            next_at = max(next_at + self._terms.retry, self._clock())
            await asyncio.sleep(next_at - self._clock())
            await self._attempt(self._renew)

    async def release(self) -> None:
        """Let the next one lead at once. Nothing of this process may write any more when this is called."""
        self._fence.check()
        try:
            lease = self._lease or await self._read()
            if lease is not None and self._sight.holder == self._identity:
                await self._api.replace(LEASE, give_up(lease, _moment()))
        except KubeError as error:
            _log.warning("the Lease was not released %s", fields(error=error))

    async def _attempt(self, step: Callable[[], Awaitable[float | None]]) -> float | None:
        try:
            wait = await step()
        except KubeError as error:
            self._lease = None
            self._problem = str(error)
            level = logging.DEBUG if isinstance(error, ConflictError) else logging.WARNING
            _log.log(level, "the Lease was neither read nor written %s", fields(error=error))
            return self._terms.retry
        self._answered_at = self._clock()
        return wait

    async def _try_to_acquire(self) -> float | None:
        """Return None when this process leads, else the seconds until the next try."""
        lease = await self._read()
        free_in = self._sight.free_in(self._terms, self._clock())
        if free_in > 0:
            return min(free_in, self._terms.retry)
        return None if await self._write(lease) else self._terms.retry

    async def _renew(self) -> None:
        lease = self._lease or await self._read()
        if lease is not None and self._sight.holder != self._identity:
            self._end(f"the Lease is held by {self._sight.holder or 'nobody'}")
        await self._write(lease)

    async def _read(self) -> Manifest | None:
        before = self._sight.holder
        lease = await self._api.get(LEASE, self._namespace, self._name)
        if lease is not None:
            self._sight.see(lease, self._clock())
        else:
            self._sight.see_none(self._clock())
        if self._sight.holder not in (before, self._identity, ""):
            _log.info("another one leads %s", fields(holder=self._sight.holder))
        return lease

    async def _write(self, lease: Manifest | None) -> bool:
        wanted = claim(lease, self._namespace, self._name, self._identity, self._terms, _moment())
        sent_at = self._clock()
        if lease is None:
            if not await self._api.create(LEASE, wanted):
                return False
            self._lease = None  # its version is not known
        else:
            self._lease = await self._api.replace(LEASE, wanted)
            self._sight.see(self._lease, sent_at)
        self._fence.extend(sent_at + self._terms.renew)
        return True


def _moment() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
