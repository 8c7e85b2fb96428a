"""A memcached node that ends, hangs or lies in the middle of a value: the rest is a counted miss, and hits resume."""

from collections.abc import Iterator

import pytest

from pagoda_sidecar.client import LoadResult, TierClient
from tests.faults import universe
from tests.faults.world import World, running_world, wait_until
from tests.support.faults.mutations import Fault
from tests.support.memcached import needs_memcached

pytestmark = needs_memcached
READY_SECONDS = 60.0


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with running_world(disk_bytes=0) as running:
        running.write_nodes([True, False])  # one node, which takes records whole
        yield running


@pytest.fixture
def client(world: World) -> Iterator[TierClient]:
    tiers = TierClient(world.sidecar.volume, universe.identity(0))
    wait_until(
        lambda: tiers.attached and not tiers.off_reason and not tiers.pool_off_reason, READY_SECONDS, "the tiers"
    )
    yield tiers
    tiers.close()


def store(client: TierClient, family: int) -> tuple[bytes, ...]:
    addresses = universe.chain(family, 0)

    def source(index: int, view: memoryview) -> None:
        view[:] = universe.payload(0, addresses[index])

    assert client.store(universe.records(family, addresses), source, 5.0).refused == 0
    return addresses


def load(client: TierClient, family: int) -> tuple[LoadResult, int]:
    """Load a whole chain; return the result and how many of its blocks had the right bytes."""
    addresses = universe.chain(family, 0)
    got: dict[int, bytes] = {}
    result = client.load(
        universe.root(family), addresses, 0, len(addresses),
        lambda position, view: got.__setitem__(position, bytes(view)), 5.0, lambda: False,
    )  # fmt: skip
    positions = range(len(result.sources))
    return result, sum(got[position] == universe.payload(0, addresses[position]) for position in positions)


def only_in_the_pool(world: World, client: TierClient, family: int) -> None:
    """Store a chain, push it, and bring so many others that nothing of it is left in RAM; there is no disk."""
    store(client, family)
    client.hand_over(10**9, 5.0)
    for number in range(30):
        store(client, 1000 + family * 100 + number)
    (part, *_) = client.lookup(universe.chain(family, 0), 2.0)
    assert part.tier == "pool", part


@pytest.mark.parametrize(("number", "kind"), [(0, "cut"), (1, "hang"), (2, "swallow"), (3, "garble"), (4, "opaque")])
def test_e5_a_node_that_dies_in_the_middle_of_a_value_costs_a_counted_miss(
    world: World, client: TierClient, number: int, kind: str
) -> None:
    only_in_the_pool(world, client, number)
    before = failures(world)
    world.proxies[0].arm(Fault("fetch", kind))
    result, num_right = load(client, number)
    assert num_right == len(result.sources) < len(universe.chain(number, 0))
    assert result.reason is not None
    wait_until(lambda: failures(world) > before, READY_SECONDS, "the count")
    wait_until(lambda: load(client, number)[0].reason is None, READY_SECONDS, "hits to resume")
    assert load(client, number)[1] == len(universe.chain(number, 0))


def failures(world: World) -> float:
    """Records that a node failed to give, of any reason but that it has none."""
    return sum(
        value
        for name, value in world.sidecar.metrics().items()
        if name.startswith("pagoda_pool_operations_total{")
        and 'operation="fetch"' in name
        and not any(f'outcome="{outcome}"' in name for outcome in ("hit", "miss"))
    )
