"""What of a stored pool may change, and what not."""

from typing import Any

import pytest

from e2e.crd.pools import Pools, RefusedError
from pagoda_protocol.pool.spec import parse_pool
from tests.protocol.pool.manifests import changed, minimal

RAM = {"size": "1Gi"}
MANAGED = {"managed": {"memoryPerReplica": "1Gi"}}
EXTERNAL = {"external": {"addresses": ["mc-0:11211"]}}


@pytest.fixture(scope="module")
def stored(pools: Pools) -> str:
    """The name of a pool with a disk of a storage class and managed nodes."""
    disk = {"size": "1Gi", "storageClassName": "fast"}
    pools.create(changed("spec cache", {"ram": RAM, "disk": disk, "pool": MANAGED}, minimal("changing")))
    return "changing"


@pytest.mark.parametrize(
    ("cache", "field"),
    [
        ({"disk": {"storageClassName": "slow"}}, "spec.cache.disk.storageClassName"),
        ({"disk": {"storageClassName": None}}, "spec.cache.disk.storageClassName"),
        ({"pool": {"managed": None, **EXTERNAL}, "secretRef": {"name": "shared"}}, "spec.cache.pool"),
    ],
    ids=["another storage class", "no storage class", "external for managed"],
)
def test_what_cannot_change_is_refused_by_name_with_the_way_out(
    pools: Pools, stored: str, cache: dict[str, Any], field: str
) -> None:
    with pytest.raises(RefusedError, match=f"take {field.removesuffix('.storageClassName')} away first") as refused:
        pools.patch(stored, {"spec": {"cache": cache}})
    assert field in refused.value.fields


def test_a_disk_without_a_storage_class_gets_none_later(pools: Pools) -> None:
    pools.create(changed("spec cache", {"ram": RAM, "disk": {"size": "1Gi"}}, minimal("plain")))
    with pytest.raises(RefusedError, match=r"spec\.cache\.disk\.storageClassName"):
        pools.patch("plain", {"spec": {"cache": {"disk": {"storageClassName": "fast"}}}})


def test_ram_stays_while_disk_or_pool_builds_on_it(pools: Pools, stored: str) -> None:
    with pytest.raises(RefusedError, match=r"give spec\.cache\.ram\.size too, or leave disk out") as refused:
        pools.patch(stored, {"spec": {"cache": {"ram": None}}})
    assert {"spec.cache.disk", "spec.cache.pool"} <= set(refused.value.fields)


@pytest.mark.parametrize("tier", [{"disk": {"size": "1Gi"}}, {"pool": MANAGED}], ids=["disk", "pool"])
def test_what_builds_on_ram_comes_with_it_and_goes_with_it(pools: Pools, tier: dict[str, Any]) -> None:
    [kind] = tier
    name = f"{kind}-later"
    pools.create(minimal(name))
    with pytest.raises(RefusedError, match=rf"give spec\.cache\.ram\.size too, or leave {kind} out") as refused:
        pools.patch(name, {"spec": {"cache": tier}})
    assert f"spec.cache.{kind}" in refused.value.fields
    pools.patch(name, {"spec": {"cache": tier | {"ram": RAM}}})
    stored = pools.patch(name, {"spec": {"cache": {kind: None, "ram": None}}})
    assert not {kind, "ram"} & set(stored["spec"]["cache"])


def test_everything_else_changes_in_place(pools: Pools, stored: str) -> None:
    change = {
        "model": {"name": "other", "source": {"pythonPackage": None, "local": {"path": "/models/x"}}},
        "replicas": 3,
        "engine": {"kvCache": {"blockTokens": 32}, "rollout": {"maxUnavailable": 2}},
        "cache": {"disk": {"size": "2Gi"}, "pool": {"managed": {"replicas": 4}}, "codec": "Int8"},
        "networkPolicy": {"mode": "None"},
    }
    pool = parse_pool(pools.patch(stored, {"spec": change}))
    assert (pool.model.name, pool.replicas, pool.engine.kv_cache.block_tokens) == ("other", 3, 32)


def test_what_cannot_change_in_place_can_be_taken_away_and_given_anew(pools: Pools) -> None:
    cache = {"ram": RAM, "pool": MANAGED, "secretRef": {"name": "shared"}}
    pools.create(changed("spec cache", cache, minimal("moving")))
    pools.patch("moving", {"spec": {"cache": {"pool": None}}})
    stored = pools.patch("moving", {"spec": {"cache": {"pool": EXTERNAL}}})
    assert stored["spec"]["cache"]["pool"] == EXTERNAL
