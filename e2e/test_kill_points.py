"""SIGKILL at every point of the sidecar worker's life: before, in the middle of and after each change of the arena."""

import contextlib
import time
from collections.abc import Iterator

import pytest

from pagoda_sidecar.client import TierClient, TierUnavailable
from tests.faults import universe
from tests.faults.mischief import kills_of_all
from tests.faults.world import StuckError, World, running_world, wait_until
from tests.support.faults.control import Kill
from tests.support.memcached import needs_memcached

pytestmark = needs_memcached
READY_SECONDS = 60.0
DEATH_SECONDS = 180.0


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with running_world() as running:
        yield running


def attached(world: World) -> TierClient:
    client = TierClient(world.sidecar.volume, universe.identity(0))
    wait_until(lambda: client.attached and not client.off_reason, READY_SECONDS, "the RAM tier")
    return client


def reopened(world: World) -> TierClient:
    """Attach anew, though it may be the attach that kills."""
    client = TierClient(world.sidecar.volume, universe.identity(0))
    with contextlib.suppress(StuckError):
        wait_until(lambda: client.attached, 5.0, "the attach")
    return client


def live(client: TierClient, family: int) -> None:
    """Store a chain, push it, and load an older one: every point is passed, if not the first time."""
    with contextlib.suppress(TierUnavailable):
        addresses = universe.chain(family, 0)

        def source(index: int, view: memoryview) -> None:
            view[:] = universe.payload(0, addresses[index])

        client.store(universe.records(family, addresses), source, 1.0)
        client.hand_over(10**9, 1.0)
        check_load(client, max(0, family - 30))


def check_load(client: TierClient, family: int) -> None:
    addresses = universe.chain(family, 0)
    got: dict[int, bytes] = {}
    result = client.load(
        universe.root(family), addresses, 0, len(addresses),
        lambda position, view: got.__setitem__(position, bytes(view)), 1.0, lambda: False,
    )  # fmt: skip
    for position in range(len(result.sources)):
        assert got[position] == universe.payload(0, addresses[position]), "wrong bytes"


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("point", "when"), kills_of_all())
def test_e24_a_kill_at_any_point_costs_time_alone(world: World, point: str, when: str) -> None:
    name = f"kill.{point}.{when}"
    client = attached(world)
    world.sidecar.steering.kill(Kill(point, when, 1))
    time.sleep(0.05)
    end = time.monotonic() + DEATH_SECONDS
    family = 0
    while name not in world.sidecar.steering.done():
        assert time.monotonic() < end, f"{name} was never passed"
        live(client, family)
        family += 1
        if family % 8 == 0:
            client.close()
            client = reopened(world)
    wait_until(lambda: client.attached and not client.off_reason, READY_SECONDS, "the engine to attach again")
    for number in range(family):
        check_load(client, number)
    wait_until(lambda: is_settled(world), READY_SECONDS, f"leases and quarantine zero: {world.sidecar.metrics()}")
    client.close()
    assert not world.sidecar.steering.violations()


def is_settled(world: World) -> bool:
    metrics = world.sidecar.metrics()
    return metrics.get("pagoda_leases") == 0 and metrics.get("pagoda_quarantined_slots") == 0
