"""One memcached node: its connections, and whether it is worth asking.

    up ──failure──► down: operations raise NodeDown at once, a task pings ──answer──► up

Only the ping spends time on a node that is down, never a request: operations read the breaker's state, the ping alone
takes its half-open call. A node that answers pings but fails at its work (a slow one) is pinged ever more rarely, until
it has worked once.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence

from pagoda_runtime.breaker import Breaker, BreakerState
from pagoda_runtime.logs import fields
from pagoda_sidecar.pool import reads, stores
from pagoda_sidecar.pool.access import Access
from pagoda_sidecar.pool.connection import Connection
from pagoda_sidecar.pool.counters import PoolCounters
from pagoda_sidecar.pool.errors import NodeBusy, NodeDenied, NodeDown, NodeError, NodeFailed, NodeUntrusted
from pagoda_sidecar.pool.lane import StoreLane
from pagoda_sidecar.pool.nodes import PoolNode
from pagoda_sidecar.pool.settings import PoolSettings
from pagoda_sidecar.pool.stores import Storing

_log = logging.getLogger(__name__)

OPERATIONS = ("probe", "fetch", "store")
_OUR_FAULT = (NodeDenied, NodeUntrusted)  # it will say the same until somebody changes a file
_WORK = ("fetch", "store")  # a probe moves next to nothing: its success says little about a slow node


class Node:
    """Lends connections; counts what happens to the node itself under the operation `ping`."""

    def __init__(self, node: PoolNode, settings: PoolSettings, access: Access, counters: PoolCounters) -> None:
        self.node = node
        self._access = access
        self._settings = settings
        self._counters = counters
        self._breaker = Breaker(max_failures=1, open_seconds=settings.retry_seconds)
        self._gates = {name: asyncio.Semaphore(settings.connections_per_operation) for name in OPERATIONS}
        self.lane = StoreLane(self._send, settings.window_bytes)
        self._idle: list[Connection] = []
        self._recovery: asyncio.Task[None] | None = None
        self._access_changed = asyncio.Event()
        self._patience = settings.retry_seconds
        self._is_retired = False
        self._problem: str | None = None  # what we said last; None: nothing yet
        counters.operations.join(node.name, self)

    @property
    def num_idle_connections(self) -> int:
        """Connections that are open and not lent."""
        return len(self._idle)

    def count(self, operation: str, outcome: str, amount: int = 1) -> None:
        """Count what became of `amount` operations on this node."""
        self._counters.operations.count(self.node.name, operation, outcome, amount)

    @contextlib.asynccontextmanager
    async def connection(self, operation: str) -> AsyncIterator[Connection]:
        """Lend a connection for one exchange; it is closed unless the exchange ended well.

        Raises:
            NodeError: there is none to be had, or whatever the exchange raised.
        """
        self._check_up()
        gate = self._gates[operation]
        await self._enter(gate)
        try:
            self._check_up()  # the node may have failed somebody else meanwhile: everybody waits for one deadline only
            connection = self._take_idle() or await Connection.open(self.node, self._settings, self._access)
            if self._recovery is None:
                self._say("")
            try:
                yield connection
            finally:
                self._take_back(connection)
        except NodeFailed as error:
            self._has_failed(error)
            raise
        finally:
            gate.release()
        if operation in _WORK and self._recovery is None:
            self._patience = self._settings.retry_seconds

    async def look(self) -> None:
        """Find out whether the node answers; one that is known not to is asked by the recovery alone."""
        with contextlib.suppress(NodeError):
            async with self.connection("probe") as connection:
                await reads.ping(connection)

    def set_access(self, access: Access) -> None:
        """Open connections with `access` from now on; a node that was left alone is tried with it soon."""
        self._access = access
        self._close_idle()
        self._access_changed.set()

    def retire(self) -> "asyncio.Task[None] | None":
        """Close what is not lent now; what is lent, when it comes back. Nothing can be lent afterwards.

        Returns the recovery, cancelled, for somebody to wait for.
        """
        self._is_retired = True
        self._close_idle()
        self._counters.states.take_back(self.node.name, self)
        self._counters.operations.leave(self.node.name, self)
        if self._recovery is not None:
            self._recovery.cancel()
        return self._recovery

    async def _send(self, batch: Sequence[Storing]) -> None:
        async with self.connection("store") as connection:
            await stores.store(connection, batch)

    def _check_up(self) -> None:
        if self._is_retired or self._breaker.state is not BreakerState.CLOSED:
            raise NodeDown(self.node.name)

    async def _enter(self, gate: asyncio.Semaphore) -> None:
        if not gate.locked():
            await gate.acquire()  # at once: no timer needed
            return
        try:
            async with asyncio.timeout(self._settings.operation_seconds):
                await gate.acquire()
        except TimeoutError as error:
            raise NodeBusy(self.node.name) from error

    def _take_back(self, connection: Connection) -> None:
        if connection.is_clean and not self._is_retired:
            self._idle.append(connection)
        else:
            connection.close()

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_stale:
                return connection
            connection.close()  # the node restarted: that is no failure if it accepts a new one
        return None

    def _say(self, problem: str) -> None:
        if problem != self._problem and not self._is_retired:
            self._problem = problem
            self._counters.states.say(self.node.name, self, problem)

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _has_failed(self, error: NodeError) -> None:
        self._breaker.failed()
        self._close_idle()
        self._say(f"{error.outcome}: {error}")
        if self._recovery is None and not self._is_retired:
            _log.warning("memcached node left alone %s", fields(node=self.node.name, why=error))
            self._recovery = asyncio.create_task(self._recover(), name=f"recover {self.node.name}")

    async def _recover(self) -> None:
        """Ping the node until it answers."""
        while True:
            await self._pause()
            if not self._breaker.allow():  # an operation that was still under way failed later than the first
                continue
            try:
                connection = await Connection.open(self.node, self._settings, self._access)
            except NodeFailed as error:
                self._breaker.failed()
                self.count("ping", error.outcome)
                if isinstance(error, _OUR_FAULT):
                    self._grow_patience()
                continue
            break
        self.count("ping", "answered")
        self._idle.append(connection)
        self._say("")
        self._grow_patience()
        self._recovery = None
        self._breaker.succeeded()
        _log.info("memcached node answers again %s", fields(node=self.node.name))

    async def _pause(self) -> None:
        """Leave the node alone for a while; new certificates or credentials end that."""
        self._access_changed.clear()
        try:
            async with asyncio.timeout(self._patience):
                await self._access_changed.wait()
        except TimeoutError:
            return
        self._patience = self._settings.retry_seconds
        await asyncio.sleep(self._patience)

    def _grow_patience(self) -> None:
        self._patience = min(2 * self._patience, self._settings.max_retry_seconds)
