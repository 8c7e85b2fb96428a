"""The pool as the control loop sees it: records move in a thread with an event loop of its own.

    control loop ── probe ──► Probes (what need not be asked) ──► few: asked here, by connections of our own
                                                              └─► many ──┐
                 ── fetch, store ────────────────────────────────────────┴──► MemcachedPool in its thread
                 ◄── on_ready, results ────────────────────────────────────────┘

No byte of a record holds up the control loop, and the few bytes that say whether a record exists do not wait behind
records. Both loops hand calls over in order, so a record is reported before its fetch has ended, and what was set holds
for all that is asked later. A caller that is cancelled waits until its call has ended over there: nobody touches its
memory afterwards.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from pagoda_protocol.records import RecordHeader
from pagoda_runtime.metrics import Instrument, Metrics
from pagoda_sidecar.pool import STORED, Access, MemcachedPool, PoolCounters, PoolNode, PoolSettings, Probes

_Result = TypeVar("_Result")

# More keys than these would cost the control loop more than handing the question over
MAX_ASKED_HERE = 16
FINISH_SECONDS = 2.0
JOIN_SECONDS = 5.0
LOOK_SECONDS = 5.0  # between two questions that nothing else wants to know


class PoolThread:
    """A `PoolTier`. All calls belong to the control loop, but for those of the constructor's time."""

    def __init__(
        self,
        metrics: Metrics,
        settings: PoolSettings = PoolSettings(),  # noqa: B008 - frozen
        integrity_failures: Instrument | None = None,
    ) -> None:
        """Start the thread; `close` ends it."""
        counters = PoolCounters(metrics, integrity_failures)
        self._asking = MemcachedPool((), counters, settings)
        self._pool = MemcachedPool((), counters, settings)
        self._probes = Probes(
            self._ask, counters.probes_saved, settings.absent_seconds, settings.max_absent, time.monotonic
        )
        self._namespace = b""
        self._names: tuple[str, ...] = ()
        self._looked_at = 0.0
        self._num_nodes = self._num_lists = 0
        self._states = counters.states
        self._problem = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="pool-tier", daemon=True)
        self._thread.start()

    @property
    def off_reason(self) -> str:
        """Why nothing is read or written; empty when the pool is enabled."""
        return MemcachedPool.why_off(self._problem, self._num_nodes, self._namespace)

    @property
    def is_configured(self) -> bool:
        """Whether nodes are listed, or what would let us reach them is wanting."""
        return bool(self._num_nodes or self._problem)

    def enabled(self) -> bool:
        """Whether operations reach any node."""
        return not self.off_reason

    @property
    def num_upheavals(self) -> int:
        """A number that rises with each list of nodes and each node that comes back."""
        return self._num_lists + self._states.num_returns

    async def look(self) -> Mapping[str, str]:
        """Ask each node whether it is there, unless it was just asked; return what is wrong with each, by name."""
        if not self._problem and time.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._looked_at = time.monotonic()
            await self._asking.look()
        problems = self._states.problems()
        return {name: problems.get(name, "not asked yet") for name in self._names}

    def set_namespace(self, namespace: bytes) -> None:
        """Read and write records of `namespace` (32 bytes) from now on.

        Raises:
            ValueError: it has another length.
        """
        MemcachedPool.check_namespace(namespace)
        if namespace != self._namespace:
            self._namespace = namespace
            self._probes.forget()
            self._asking.set_namespace(namespace)
            self._tell(self._pool.set_namespace, namespace)

    def set_nodes(self, nodes: Sequence[PoolNode]) -> None:
        """Use `nodes` from now on."""
        self._num_nodes = len(nodes)
        self._names = tuple(node.name for node in nodes)
        self._looked_at = 0.0
        self._num_lists += 1
        self._probes.forget()
        self._asking.set_nodes(nodes)
        self._tell(self._pool.set_nodes, tuple(nodes))

    def set_access(self, access: Access) -> None:
        """Approach nodes with `access` from now on."""
        self._problem = ""
        self._asking.set_access(access)
        self._tell(self._pool.set_access, access)

    def set_problem(self, reason: str) -> None:
        """Be off with a reason until access is set."""
        self._problem = reason
        self._asking.set_problem(reason)
        self._tell(self._pool.set_problem, reason)

    async def probe(self, addresses: Sequence[bytes]) -> list[bool]:
        """Say which records exist, as of `PoolSettings.absent_seconds` ago at the earliest."""
        return await self._probes.probe(addresses) if self.enabled() else [False] * len(addresses)

    async def fetch(
        self,
        addresses: Sequence[bytes],
        destinations: Sequence[memoryview],
        on_ready: Callable[[int, RecordHeader], None],
    ) -> None:
        """Read records into `destinations`; `on_ready` is called in the control loop.

        Raises:
            ExceptionGroup: only with what `on_ready` raised.
        """
        control = asyncio.get_running_loop()
        failures: list[Exception] = []

        def ready(index: int, header: RecordHeader) -> None:
            self._probes.present(addresses[index])
            try:
                on_ready(index, header)
            except Exception as error:  # noqa: BLE001 - the caller's own, and raised to it below
                failures.append(error)

        def landed(index: int, header: RecordHeader) -> None:
            control.call_soon_threadsafe(ready, index, header)

        if self.enabled():
            await self._cross(lambda: self._pool.fetch(addresses, destinations, landed))
        if failures:
            raise ExceptionGroup("on_ready failed", failures)

    async def store_all(self, records: Sequence[tuple[RecordHeader, memoryview]]) -> list[str]:
        """Write sealed records; return what became of each."""
        if not self.enabled():
            return ["off"] * len(records)
        outcomes = await self._cross(lambda: self._pool.store_all(records))
        for (header, _), outcome in zip(records, outcomes, strict=True):
            if outcome in STORED:
                self._probes.present(header.address)
        return outcomes

    def seconds_per_byte(self) -> float:
        """Mean of what payload bytes have cost lately."""
        return self._pool.seconds_per_byte()

    def latency_seconds(self) -> float:
        """Mean time from a question to its first answer lately."""
        return self._pool.latency_seconds()

    async def close(self) -> None:
        """Close every connection and end the thread, after what is under way; fine twice."""
        if self._loop.is_closed():
            return
        self._num_nodes = 0  # from here on nothing crosses
        await self._probes.finish(FINISH_SECONDS)
        await self._asking.close()
        await self._cross(self._finish)
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join, JOIN_SECONDS)

    async def _ask(self, addresses: Sequence[bytes]) -> Sequence[bool | None]:
        if len(addresses) <= MAX_ASKED_HERE:
            return await self._asking.ask(addresses)
        return await self._cross(lambda: self._pool.ask(addresses))

    async def _finish(self) -> None:
        """Let operations end, by their own deadlines or ours."""
        await self._pool.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            _, late = await asyncio.wait(others, timeout=FINISH_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _tell(self, setter: Callable[..., None], *values: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(setter, *values)

    async def _cross(self, call: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        """Run `call` in the pool's loop; when we are cancelled it is too, and has ended when this raises."""
        control = asyncio.get_running_loop()
        ended: asyncio.Future[None] = control.create_future()
        tasks: list[asyncio.Task[_Result]] = []

        def begin() -> None:
            tasks.append(asyncio.create_task(call()))
            tasks[0].add_done_callback(lambda _: control.call_soon_threadsafe(ended.set_result, None))

        self._loop.call_soon_threadsafe(begin)
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            await _to_the_end(ended)
            raise
        return tasks[0].result()


async def _to_the_end(ended: "asyncio.Future[None]") -> None:
    """Wait for `ended`, however often we are cancelled meanwhile."""
    while not ended.done():
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            continue
