"""What is kept before others, over real sockets: sessions that are parked, also before their copy is there, and handed
over ones.
"""

from collections.abc import Sequence

from pagoda_sidecar.client import TierClient
from tests.sidecar.support import (
    MEBIBYTE,
    SidecarProcess,
    chain,
    client_of,
    load,
    memcached,
    sidecar_process,
    store,
    wait_until,
)

PARKED = 'pagoda_tier_blocks{state="parked",tier="ram"}'


def tiers(client: TierClient, addresses: Sequence[bytes]) -> list[str]:
    return [part.tier for part in client.lookup(addresses, 5.0) for _ in range(part.count)]


def scan(client: TierClient, num_chains: int = 30) -> None:
    """Store several times what RAM holds."""
    for seed in range(1000, 1000 + num_chains):
        store(client, chain(10, seed))


def num_parked(sidecar: SidecarProcess, want: int) -> bool:
    wait_until(lambda: sidecar.metric(PARKED) == want, what=f"{want} parked blocks")
    return True


def test_a_chain_parked_before_its_copy_has_arrived_is_kept_once_it_has() -> None:
    """An engine reports beside its stores, and nothing says which comes first."""
    early, used_since = chain(6), chain(6, 1)
    with sidecar_process(MEBIBYTE) as sidecar, client_of(sidecar) as client:
        client.report([], [], [], [], None, 5.0, parked=[early[-1], used_since[-1]])
        client.report([], [], [], [used_since[-1]], None, 5.0)
        store(client, early)
        store(client, used_since)
        assert num_parked(sidecar, 6)
        scan(client)
        assert tiers(client, early) == ["ram"] * 6
        assert tiers(client, used_since) == []


def test_what_another_pod_handed_over_is_kept_until_it_is_used_what_it_pushed_before_is_not() -> None:
    pushed, handed_over = chain(6), chain(6, 1)
    with memcached() as port, sidecar_process(nodes=[("n", port)]) as one, client_of(one) as client:
        store(client, pushed)
        client.report([], [], [], [pushed[-1]] * 2, None, 5.0)
        wait_until(lambda: num_stored(one) == 6, what="a push")
        store(client, handed_over)
        assert client.hand_over(10 * MEBIBYTE, 5.0) == 6
        with sidecar_process(MEBIBYTE, [("n", port)]) as other, client_of(other) as heir:
            for addresses in (handed_over, pushed):
                assert load(heir, addresses).sources == ["pool"] * 6
            assert num_parked(other, 6)
            scan(heir)
            assert (tiers(heir, handed_over), tiers(heir, pushed)) == (["ram"] * 6, ["pool"] * 6)
            heir.report([], [], [], [handed_over[-1]], None, 5.0)
            assert num_parked(other, 0)


def num_stored(sidecar: SidecarProcess) -> float:
    return sidecar.metric('pagoda_pool_operations_total{node="n",operation="store",outcome="stored"}')
