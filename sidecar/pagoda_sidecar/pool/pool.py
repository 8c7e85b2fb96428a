"""The pool as the sidecar sees it: probe, fetch and store over all nodes, and no node's failure ever as an exception.

addresses ──rendezvous──► per node: windows of at most `window_bytes` ──one connection──► exchange
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from pagoda_protocol.records import RecordHeader
from pagoda_sidecar.pool import keys, reads
from pagoda_sidecar.pool.access import Access
from pagoda_sidecar.pool.counters import PoolCounters
from pagoda_sidecar.pool.errors import NodeError
from pagoda_sidecar.pool.node import Node
from pagoda_sidecar.pool.nodes import PoolNode
from pagoda_sidecar.pool.pace import Pace
from pagoda_sidecar.pool.reads import OnReady, Wanted
from pagoda_sidecar.pool.rendezvous import Rendezvous
from pagoda_sidecar.pool.settings import PoolSettings
from pagoda_sidecar.pool.stores import Storing

NAMESPACE_BYTES = 32
STORED = frozenset(("stored", "exists"))

# So many commands fit the kernel's buffers with room to spare: a node that answers while we still ask blocks nobody.
_MAX_BATCH_KEYS = 128


class MemcachedPool:
    """All calls belong to one event loop. Every operation is counted by node and outcome."""

    def __init__(
        self,
        nodes: Sequence[PoolNode],
        counters: PoolCounters,
        settings: PoolSettings = PoolSettings(),  # noqa: B008 - frozen
    ) -> None:
        """Open nothing yet."""
        self._settings = settings
        self._counters = counters
        self._pace = Pace()
        self._namespace = b""
        self._access = Access()
        self._problem = ""
        self._nodes: dict[str, Node] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.set_nodes(nodes)

    @property
    def off_reason(self) -> str:
        """Why nothing is read or written; empty when the pool is enabled."""
        return self.why_off(self._problem, len(self._nodes), self._namespace)

    @staticmethod
    def why_off(problem: str, num_nodes: int, namespace: bytes) -> str:
        """Return the first reason to be off; empty when there is none."""
        if problem:
            return problem
        if not num_nodes:
            return "no memcached nodes are configured"
        return "" if namespace else "no engine has announced its namespace"

    def enabled(self) -> bool:
        """Whether operations reach any node. Nodes that are down do not disable the pool, they cost misses."""
        return not self.off_reason

    def set_namespace(self, namespace: bytes) -> None:
        """Read and write records of `namespace` (32 bytes) from now on.

        Raises:
            ValueError: it has another length.
        """
        self.check_namespace(namespace)
        self._namespace = namespace

    @staticmethod
    def check_namespace(namespace: bytes) -> None:
        """Refuse what cannot be a namespace.

        Raises:
            ValueError: it has another length than 32.
        """
        if len(namespace) != NAMESPACE_BYTES:
            raise ValueError(f"namespace: expected {NAMESPACE_BYTES} bytes, got {len(namespace)}")

    def set_access(self, access: Access) -> None:
        """Approach nodes with `access` from now on; connections in use stay as they are until they come back."""
        self._access, self._problem = access, ""
        for node in self._nodes.values():
            node.set_access(access)

    def set_problem(self, reason: str) -> None:
        """Be off with a reason until access is set."""
        self._problem = reason

    def set_nodes(self, nodes: Sequence[PoolNode]) -> None:
        """Use `nodes` from now on. Those that stay as they are keep their connections and what is known of them."""
        kept, gone = {}, dict(self._nodes)
        for node in nodes:
            known = gone.get(node.name)
            if known is not None and known.node == node:
                kept[node.name] = gone.pop(node.name)
            else:
                kept[node.name] = Node(node, self._settings, self._access, self._counters)
        self._nodes = kept
        self._rendezvous = Rendezvous(kept)
        for node_gone in gone.values():
            recovery = node_gone.retire()
            if recovery is not None:
                self._closing.add(recovery)
                recovery.add_done_callback(self._closing.discard)

    async def probe(self, addresses: Sequence[bytes]) -> list[bool]:
        """Say for each address whether its node holds a record; does not count as use. False where nobody answers."""
        return [answer is True for answer in await self.ask(addresses)]

    async def ask(self, addresses: Sequence[bytes]) -> list[bool | None]:
        """Do as `probe` does, with None where nobody answers."""
        found: list[bool | None] = [None] * len(addresses)

        async def ask(node: Node, indices: list[int]) -> None:
            for start in range(0, len(indices), _MAX_BATCH_KEYS):
                batch = indices[start : start + _MAX_BATCH_KEYS]
                outcomes = Counter({"cancelled": len(batch)})
                try:
                    async with node.connection("probe") as connection:
                        batch_keys = [keys.record_key(namespace, addresses[index]) for index in batch]
                        answers = await reads.probe(connection, batch_keys, self._pace)
                    for index, answer in zip(batch, answers, strict=True):
                        found[index] = answer
                    outcomes = Counter("hit" if answer else "miss" for answer in answers)
                except NodeError as error:
                    outcomes = Counter({error.outcome: len(indices) - start})
                    return
                finally:
                    _count(node, "probe", outcomes)

        if self.enabled():
            namespace = self._namespace
            await _all([ask(node, indices) for node, indices in self._by_node(addresses)])
        return found

    async def look(self) -> None:
        """Find out whether each node answers."""
        await _all([node.look() for node in self._nodes.values()])

    async def fetch(self, addresses: Sequence[bytes], destinations: Sequence[memoryview], on_ready: OnReady) -> None:
        """Read each record into its destination, in the order given on each node.

        `on_ready(index, header)` is called in the event loop once the record of `addresses[index]` lies verified at the
        start of `destinations[index]`; a destination not reported holds anything. What is missing, bad, late or on a
        node that is down is not reported. Once this has returned or was cancelled no destination is written any more.

        Raises:
            ExceptionGroup: only with what `on_ready` raised.
        """
        assert len(addresses) == len(destinations), "each address needs a destination"
        if not self.enabled():
            return
        parts = []
        for node, indices in self._by_node(addresses):
            wanted = [Wanted(index, addresses[index], destinations[index]) for index in indices]
            parts.append(self._fetch_from(node, wanted, self._namespace, on_ready))
        await _all(parts)

    async def store(self, header: RecordHeader, payload: memoryview) -> bool:
        """Write one sealed record; return whether its node acknowledged it, or holds it already."""
        return await self.put(header, payload) in STORED

    async def put(self, header: RecordHeader, payload: memoryview) -> str:
        """Do as `store` does and return the outcome, one of `STORED` if its node has it now. Never retried.

        The payload is held against its header first, and may be reused once this has returned or was cancelled.
        """
        if not self.enabled():
            return "off"
        node = self._nodes[self._rendezvous.owner(header.address)]
        if header.namespace != self._namespace[:16]:
            node.count("store", "other_namespace")  # a block of the engine before this one
            return "other_namespace"
        storing = Storing(self._namespace, header, payload)
        outcome = "cancelled"
        try:
            outcome = await node.lane.store(storing)
        finally:
            node.count("store", outcome)
        return outcome

    async def store_all(self, records: Sequence[tuple[RecordHeader, memoryview]]) -> list[str]:
        """Write some records at once; return the outcome of each."""
        outcomes = [""] * len(records)

        async def put(index: int, header: RecordHeader, payload: memoryview) -> None:
            outcomes[index] = await self.put(header, payload)

        await _all([put(index, *record) for index, record in enumerate(records)])
        return outcomes

    def seconds_per_byte(self) -> float:
        """Mean of what payload bytes have cost lately, over all nodes."""
        return self._pace.seconds_per_byte

    def latency_seconds(self) -> float:
        """Mean time from a question to its first answer lately, over all nodes."""
        return self._pace.latency_seconds

    async def close(self) -> None:
        """Close every connection; operations afterwards find nothing. Operations under way end by themselves."""
        self.set_nodes(())
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _fetch_from(self, node: Node, wanted: list[Wanted], namespace: bytes, on_ready: OnReady) -> None:
        ending = "cancelled"
        try:
            for batch in _windows(wanted, self._settings.window_bytes):
                async with node.connection("fetch") as connection:
                    await reads.fetch(connection, batch, namespace, on_ready, self._pace)
        except NodeError as error:
            ending = error.outcome
        finally:
            _count(node, "fetch", Counter(one.outcome or ending for one in wanted))
            for one in wanted:
                if one.outcome == "corrupt":
                    self._counters.integrity_failures.add(1, tier="pool", reason=one.reason or "unknown")

    def _by_node(self, addresses: Sequence[bytes]) -> list[tuple[Node, list[int]]]:
        """Return the indices into `addresses` by the node they live on, in order."""
        indices: dict[str, list[int]] = {}
        for index, address in enumerate(addresses):
            indices.setdefault(self._rendezvous.owner(address), []).append(index)
        return [(self._nodes[name], its) for name, its in indices.items()]


def _windows(wanted: Sequence[Wanted], window_bytes: int) -> Iterator[list[Wanted]]:
    """Cut `wanted` into batches of bounded bytes and number, none empty."""
    batch: list[Wanted] = []
    num_bytes = 0
    for one in wanted:
        if batch and (num_bytes + len(one.destination) > window_bytes or len(batch) == _MAX_BATCH_KEYS):
            yield batch
            batch, num_bytes = [], 0
        batch.append(one)
        num_bytes += len(one.destination)
    if batch:
        yield batch


async def _all(parts: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all to their ends; when one raises or we are cancelled, the others are cancelled and awaited first."""
    if len(parts) == 1:  # the same without a task: three turns of the loop less
        try:
            await parts[0]
        except Exception as error:  # noqa: BLE001 - raised on in the form that several would have
            raise ExceptionGroup("a part failed", [error]) from None
        return
    async with asyncio.TaskGroup() as tasks:
        for part in parts:
            tasks.create_task(part)


def _count(node: Node, operation: str, outcomes: "Counter[str]") -> None:
    for outcome, amount in outcomes.items():
        node.count(operation, outcome, amount)
