"""K8: what a pod may use covers its tiers, and is asked for before the pod is placed."""

from typing import Any

import pytest

from pagoda_operator.children import sizes
from pagoda_protocol.pool.quantities import GIBI, MEBI, parse_bytes, parse_millicores
from pagoda_protocol.pool.spec import Disk, ManagedPool
from tests.operator.children.pools import POOLS, containers_of, templates_of

TEMPLATES = {f"{name} {part}": template for name in POOLS for part, template in templates_of(POOLS[name]).items()}
everywhere = pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
every_pool = pytest.mark.parametrize("name", POOLS)


def total(template: dict[str, Any], which: str, resource: str) -> int:
    containers = containers_of(template).values()
    return sum(parse_bytes(container["resources"][which][resource]) for container in containers)


def empty_volumes(template: dict[str, Any], medium: str | None) -> int:
    sources = [volume["emptyDir"] for volume in template["spec"]["volumes"] if "emptyDir" in volume]
    return sum(parse_bytes(source["sizeLimit"]) for source in sources if source.get("medium") == medium)


@everywhere
def test_k8_every_container_has_limits_and_asks_for_all_memory_and_storage_it_may_use(template: dict[str, Any]) -> None:
    for container in containers_of(template).values():
        limits, requests = container["resources"]["limits"], container["resources"]["requests"]
        for resource in ("memory", "ephemeral-storage"):
            assert parse_bytes(limits[resource]) > 0
            assert requests[resource] == limits[resource]
        assert parse_millicores(requests["cpu"]) > 0
        assert not {key for key in requests if "/" in key}, "extended resources stand in limits alone"


@every_pool
def test_k8_a_pods_limits_cover_its_ram_tier_beside_what_the_engine_may_use(name: str) -> None:
    pool, template = POOLS[name], templates_of(POOLS[name])["engine"]
    engine = pool.engine.resources.memory_bytes
    assert total(template, "limits", "memory") >= engine + pool.cache.ram_bytes + 16 * MEBI + 128 * MEBI
    assert total(template, "limits", "memory") >= empty_volumes(template, "Memory")
    sidecar = containers_of(template)["sidecar"]["resources"]["limits"]["memory"]
    assert parse_bytes(sidecar) >= pool.cache.ram_bytes + 16 * MEBI + 128 * MEBI, "it touches the arena first"


@everywhere
def test_k8_a_pods_storage_covers_its_volumes_on_the_nodes_disk_and_its_logs(template: dict[str, Any]) -> None:
    num_containers = len(containers_of(template))
    needed = empty_volumes(template, None) + num_containers * 50 * MEBI
    assert total(template, "requests", "ephemeral-storage") >= needed


@pytest.mark.parametrize("part", ["engine", "router", "memcached"])
def test_every_empty_volume_has_a_limit(part: str) -> None:
    for pool in POOLS.values():
        for volume in templates_of(pool).get(part, {"spec": {"volumes": []}})["spec"]["volumes"]:
            assert "sizeLimit" in volume.get("emptyDir", {"sizeLimit": ""}), volume


def test_a_disk_tier_of_the_nodes_own_is_counted_and_a_claimed_one_is_not() -> None:
    local = containers_of(templates_of(POOLS["all-tiers"])["engine"])["sidecar"]["resources"]["limits"]
    claimed = containers_of(templates_of(POOLS["gpus"])["engine"])["sidecar"]["resources"]["limits"]
    assert parse_bytes(local["ephemeral-storage"]) >= 50 * GIBI
    assert parse_bytes(claimed["ephemeral-storage"]) < GIBI


def test_a_claim_leaves_room_for_what_its_file_system_keeps() -> None:
    """ext4 keeps 5 % for root, 1.6 % for inodes and up to a gibibyte for its journal."""
    for size in (64 * MEBI, 10 * GIBI, 1024 * GIBI):
        claimed = sizes.claimed_disk_bytes(size)
        assert claimed * 0.95 - claimed / 64 - min(GIBI, claimed // 64) >= size


def test_several_gpus_get_shared_memory_and_one_does_not() -> None:
    def shared(name: str) -> bool:
        volumes = templates_of(POOLS[name])["engine"]["spec"]["volumes"]
        return any(volume["name"] == "pagoda-shm" for volume in volumes)

    assert shared("gpus")
    assert not shared("longest-name")
    assert not shared("least")


def test_an_engine_computes_with_the_cores_it_has_for_itself() -> None:
    for name, threads in (("least", "1"), ("all-tiers", "3"), ("gpus", "8")):
        engine = containers_of(templates_of(POOLS[name])["engine"])["engine"]
        assert engine["args"][engine["args"].index("--threads") + 1] == threads


def test_a_memcached_node_may_use_more_than_it_keeps_items_in() -> None:
    for memory in (64 * MEBI, 8 * GIBI):
        size = sizes.memcached(ManagedPool(1, memory))
        assert memory + 64 * MEBI <= size.memory_bytes <= 1.1 * memory + 128 * MEBI


def test_what_a_sidecar_takes_beside_the_arena_grows_with_what_it_has_to_know() -> None:
    from dataclasses import replace

    pool = POOLS["ram"]

    def overhead(ram_bytes: int, disk_bytes: int) -> int:
        cache = replace(pool.cache, ram_bytes=ram_bytes, disk=Disk(disk_bytes, None))
        return sizes.sidecar(replace(pool, cache=cache)).memory_bytes - ram_bytes

    assert overhead(64 * GIBI, 64 * MEBI) > overhead(GIBI, 64 * MEBI)
    assert overhead(GIBI, 1024 * GIBI) > overhead(GIBI, GIBI)
