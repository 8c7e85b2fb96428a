"""Tiers in dictionaries: calls stop at `checkpoint` before each thing they do, and faults are switches."""

from collections.abc import Callable, Sequence

from pagoda_engine.core.tiers import (
    BlockRecord,
    DigestRow,
    LoadReport,
    LoadResult,
    Part,
    StoreResult,
    TierUnavailable,
)
from tests.engine.core.oracle import BLOCK_TOKENS


class FakeTiers:
    """RAM and pool; as in the sidecar, what is in RAM is not stored again."""

    def __init__(self, payload_bytes: int = 8 * BLOCK_TOKENS) -> None:
        self.payload_bytes = payload_bytes
        self.attached = True
        self.has_ram = True
        self.on_attach: Callable[[], None] | None = None
        self.on_integrity_failure: Callable[[str, str], None] | None = None
        self.ram: dict[bytes, bytes] = {}
        self.pool: dict[bytes, bytes] = {}
        self.records: dict[bytes, BlockRecord] = {}
        self.checkpoint: Callable[[], None] = lambda: None
        self.is_failing = False
        self.is_refusing = False
        self.corrupt: set[bytes] = set()  # payloads that arrive wrong
        self.lookups: list[list[bytes]] = []
        self.loads: list[tuple[int, int]] = []
        self.orders: list[str] = []  # of the loads: front | back
        self.pauses_after_copy = False  # a checkpoint also between the copy and the news of it
        self.stores: list[list[BlockRecord]] = []
        self.told: set[bytes] = set()  # device residency as reported
        self.rows: dict[bytes, DigestRow] = {}
        self.touched: list[bytes] = []
        self.parked: list[bytes] = []
        self.load_reports: list[LoadReport] = []
        self.part_seconds = 0.0
        self.timeouts: list[float] = []

    def lookup(self, addresses: Sequence[bytes], timeout_seconds: float) -> list[Part]:
        self._step()
        self.lookups.append(list(addresses))
        self.timeouts.append(timeout_seconds)
        parts: list[Part] = []
        for index, address in enumerate(addresses):
            tier = "ram" if address in self.ram else "pool" if address in self.pool else None
            if tier is None:
                break
            if parts and parts[-1].tier == tier:
                parts[-1] = Part(tier, parts[-1].first, parts[-1].count + 1, self.part_seconds)
            else:
                parts.append(Part(tier, index, 1, self.part_seconds))
        return parts

    def load(
        self,
        root: bytes,
        addresses: Sequence[bytes],
        first: int,
        stop: int,
        sink: Callable[[int, memoryview], None],
        timeout_seconds: float,
        cancelled: Callable[[], bool],
        *,
        back_first: bool = False,
        arrived: Callable[[int, str], None] | None = None,
        floor: Callable[[], int] | None = None,
    ) -> LoadResult:
        self.loads.append((first, stop))
        self.timeouts.append(timeout_seconds)
        self.orders.append("back" if back_first else "front")
        sources: list[str] = []
        for position in reversed(range(first, stop)) if back_first else range(first, stop):
            self._step()
            if floor is not None and position < floor():
                return LoadResult(sources, None)
            if cancelled():
                return LoadResult(sources, "cancelled")
            address = addresses[position]
            tier, store = ("ram", self.ram) if address in self.ram else ("pool", self.pool)
            if address not in store:
                return LoadResult(sources, "absent")
            is_corrupt = address in self.corrupt
            sink(position, memoryview(b"\xbb" * len(store[address]) if is_corrupt else store[address]))
            if self.pauses_after_copy:
                self._step()
            if is_corrupt:
                return LoadResult(sources, "integrity")
            sources.append(tier)
            if arrived is not None:
                arrived(position, tier)
        self._step()
        return LoadResult(sources, None)

    def store(
        self, blocks: Sequence[BlockRecord], source: Callable[[int, memoryview], None], timeout_seconds: float
    ) -> StoreResult:
        self._step()
        self.stores.append(list(blocks))
        stored = present = refused = 0
        for position, block in enumerate(blocks):
            if block.address in self.ram:
                present += 1
            elif self.is_refusing:
                refused += 1
            else:
                payload = bytearray(self.payload_bytes)
                source(position, memoryview(payload))
                self._step()
                self.ram[block.address] = bytes(payload)
                self.records[block.address] = block
                stored += 1
        return StoreResult(stored, present, refused)

    def report(
        self,
        rows: Sequence[DigestRow],
        device_added: Sequence[bytes],
        device_removed: Sequence[bytes],
        touched: Sequence[bytes],
        load: LoadReport | None,
        timeout_seconds: float,
        parked: Sequence[bytes] = (),
    ) -> None:
        if self.is_failing:
            self.told.update(device_added[: len(device_added) // 2])  # a failed call may have had half its effect
            raise TierUnavailable("deadline")
        assert not set(device_added) & set(device_removed)
        self.told |= set(device_added)
        self.told -= set(device_removed)
        self.rows.update({row.digest: row for row in rows})
        self.touched += touched
        self.parked += parked
        if load is not None:
            self.load_reports.append(load)

    def close(self) -> None:
        pass

    def attach_anew(self, keeps_ram: bool = True) -> None:
        """Another sidecar process: it knows nothing of the device."""
        if not keeps_ram:
            self.ram.clear()
        self.told.clear()
        self.rows.clear()
        assert self.on_attach is not None
        self.on_attach()

    def _step(self) -> None:
        self.checkpoint()
        if self.is_failing:
            raise TierUnavailable("no_sidecar")
