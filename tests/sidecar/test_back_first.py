"""Loads from the end of a run backwards, over the real socket: what an engine that computes from the front asks for."""

from collections.abc import Callable, Sequence

from pagoda_sidecar.client import LoadResult, TierClient
from tests.sidecar.support import (
    MEBIBYTE,
    PAYLOAD_BYTES,
    ROOT,
    SidecarProcess,
    chain,
    client_of,
    load,
    memcached,
    payload,
    sidecar_process,
    store,
    wait_until,
)
from tests.support.faults.proxy import running_proxy


class Reader:
    """Loads back first and keeps what it was told, in order; `floor` may be raised meanwhile."""

    def __init__(self, client: TierClient, addresses: Sequence[bytes]) -> None:
        self.arrived: list[tuple[int, str]] = []
        self.copied: dict[int, bytes] = {}
        self.floor = 0
        self.on_arrived: Callable[[int], None] = lambda position: None
        self._client = client
        self._addresses = addresses

    def load(self, first: int, stop: int, is_cancelled: Callable[[], bool] = lambda: False) -> LoadResult:
        def sink(position: int, view: memoryview) -> None:
            self.copied[position] = bytes(view)

        def arrived(position: int, source: str) -> None:
            assert self.copied[position] == payload(self._addresses[position], len(self.copied[position]))
            self.arrived.append((position, source))
            self.on_arrived(position)

        return self._client.load(
            ROOT, self._addresses, first, stop, sink, 5.0, is_cancelled,
            back_first=True, arrived=arrived, floor=lambda: self.floor,
        )  # fmt: skip


def test_blocks_of_ram_come_from_the_end_backwards(sidecar: SidecarProcess) -> None:
    addresses = chain(12)
    with client_of(sidecar) as client:
        store(client, addresses)
        reader = Reader(client, addresses)
        result = reader.load(3, 10)
        assert (result.sources, result.reason) == (["ram"] * 7, None)
        assert reader.arrived == [(position, "ram") for position in (9, 8, 7, 6, 5, 4, 3)]
        wait_until(lambda: sidecar.metric("pagoda_leases") == 0)


def test_a_load_front_first_tells_of_each_block_too(sidecar: SidecarProcess) -> None:
    addresses, told = chain(3), []
    with client_of(sidecar) as client:
        store(client, addresses)
        client.load(
            ROOT, addresses, 1, 3, lambda position, view: None, 5.0, lambda: False,
            arrived=lambda position, source: told.append((position, source)),
        )  # fmt: skip
    assert told == [(1, "ram"), (2, "ram")]


def test_a_load_is_complete_when_all_above_the_floor_has_come(sidecar: SidecarProcess) -> None:
    addresses = chain(12)
    with client_of(sidecar) as client:
        store(client, addresses)
        reader = Reader(client, addresses)
        reader.on_arrived = lambda position: setattr(reader, "floor", 12 - position + 4)  # an engine that computes
        result = reader.load(0, 12)
        assert result.reason is None
        assert [position for position, _ in reader.arrived] == [11, 10, 9, 8]
        assert min(reader.copied) == 8, "nothing below the floor was touched"
        wait_until(lambda: sidecar.metric("pagoda_leases") == 0)


def test_a_damaged_block_ends_the_load_and_what_came_before_it_counts(sidecar: SidecarProcess) -> None:
    addresses = chain(6)
    with client_of(sidecar) as client:
        store(client, addresses)
        data = bytearray((sidecar.volume / "arena").read_bytes())
        position = data.index(payload(addresses[3], PAYLOAD_BYTES))
        with (sidecar.volume / "arena").open("r+b") as arena:
            arena.seek(position + 7)
            arena.write(bytes([data[position + 7] ^ 1]))
        reader = Reader(client, addresses)
        result = reader.load(0, 6)
        assert (result.sources, result.reason) == (["ram"] * 2, "integrity")
        assert [position for position, _ in reader.arrived] == [5, 4]
        assert client.num_integrity_failures == 1
        wait_until(lambda: sidecar.metric("pagoda_leases") == 0)


def test_blocks_of_the_pool_are_fetched_from_the_end_and_no_more_than_were_wanted() -> None:
    """A slow pool, so that the sidecar cannot have fetched all before we lose interest."""
    num_blocks = 40
    addresses = chain(num_blocks)
    with (
        memcached() as port,
        running_proxy("127.0.0.1", port) as proxy,
        sidecar_process(8 * MEBIBYTE, [("mc-0", port)]) as one,
        sidecar_process(8 * MEBIBYTE, [("mc-0", proxy.port)]) as other,
    ):
        with client_of(one) as client:
            store(client, addresses)
            assert client.hand_over(10 * MEBIBYTE, 5.0) == num_blocks
        with client_of(other) as client:
            store(client, addresses[:3])
            wait_until(lambda: [part.count for part in client.lookup(addresses, 1.0)] == [3, num_blocks - 3])
            proxy.throttle(num_blocks * PAYLOAD_BYTES / 2.0)  # two seconds for all of it
            reader = Reader(client, addresses)
            result = reader.load(0, num_blocks, lambda: len(reader.arrived) == 4)
            assert (result.sources, result.reason) == (["pool"] * 4, "cancelled")
            assert [position for position, _ in reader.arrived] == [39, 38, 37, 36]
            proxy.throttle(None)
            wait_until(lambda: other.metric("pagoda_leases") == 0)
            assert client.lookup(addresses[num_blocks - 4 :], 1.0)[0].tier == "ram"
            assert client.lookup(addresses[3:], 1.0)[0].tier == "pool", "the front was not fetched"
            assert load(client, addresses).reason is None


def test_ram_and_pool_in_one_load_come_in_order() -> None:
    addresses = chain(10)
    with (
        memcached() as port,
        sidecar_process(nodes=[("mc-0", port)]) as one,
        sidecar_process(nodes=[("mc-0", port)]) as other,
    ):
        with client_of(one) as client:
            store(client, addresses)
            assert client.hand_over(10 * MEBIBYTE, 5.0) == 10
        with client_of(other) as client:
            store(client, addresses[:4])
            reader = Reader(client, addresses)
            assert reader.load(0, 10).sources == ["pool"] * 6 + ["ram"] * 4
            assert [position for position, _ in reader.arrived] == list(reversed(range(10)))


def test_a_short_grant_back_first_ends_where_it_was_granted(sidecar: SidecarProcess) -> None:
    addresses = chain(5)
    with client_of(sidecar) as client:
        store(client, addresses)
        reader = Reader(client, [*addresses, b"x" * 32])
        result = reader.load(0, 6)  # nobody could fetch the last one
        assert (len(result.sources), result.reason) == (5, "no_slots")
        assert [position for position, _ in reader.arrived] == [4, 3, 2, 1, 0]
