"""Sums against what there is: a pool is refused only if it does not fit, and then with the numbers to change."""

from dataclasses import replace

import pytest

from pagoda_cli.machine import Machine
from pagoda_cli.memory import arena_bytes, memory_problems
from pagoda_cli.plan import num_managed_nodes, threads_per_engine
from tests.cli.manifests import ABSENT, pool

MIB = 1024**2
# SMALL: 2 engines of 128 Mi, 2 RAM tiers of 16 Mi, 1 memcached of 64 Mi
NEED = 2 * 128 * MIB + 2 * 16 * MIB + 64 * MIB
MACHINE = Machine(
    num_cores=2,
    available_bytes=NEED,
    group_available_bytes=None,
    shared_memory_bytes=NEED,
    memcached="/usr/bin/memcached",
)


def test_what_just_fits_is_not_refused() -> None:
    assert memory_problems(pool(), MACHINE) == []


def test_one_byte_too_much_names_every_number_and_the_sum() -> None:
    [problem] = memory_problems(pool(), replace(MACHINE, available_bytes=NEED - 1))
    assert problem == (
        "spec.engine.resources.limits.memory: 2 engines × 128Mi + 2 RAM tiers × 16Mi + 1 memcached × 64Mi = 352.0Mi of "
        "memory, more than the 352.0Mi that is available; lower spec.engine.resources.limits.memory, "
        "spec.cache.ram.size, spec.cache.pool.managed.memoryPerReplica or spec.replicas"
    )


def test_the_control_group_counts_where_it_allows_less() -> None:
    [problem] = memory_problems(pool(), replace(MACHINE, group_available_bytes=100 * MIB))
    assert "more than the 100.0Mi that its control group allows" in problem


def test_what_is_not_there_is_not_counted() -> None:
    without = replace(MACHINE, available_bytes=2 * 128 * MIB)
    assert memory_problems(pool(spec__cache=ABSENT), without) == []
    ram_too = replace(MACHINE, available_bytes=2 * (128 + 16) * MIB)
    assert memory_problems(pool(), replace(ram_too, memcached=None)) == []
    assert memory_problems(pool(), ram_too) != []


def test_an_engine_meant_for_a_gpu_needs_its_kv_cache_in_memory_here() -> None:
    limits = {"memory": "128Mi", "nvidia.com/gpu": 1}
    gpu = pool(spec__engine__resources__limits=limits, spec__cache=ABSENT)
    assert memory_problems(gpu, replace(MACHINE, available_bytes=2 * (128 + 64) * MIB)) == []
    assert memory_problems(gpu, replace(MACHINE, available_bytes=2 * (128 + 64) * MIB - 1)) != []


def test_without_a_reading_nothing_is_refused() -> None:
    assert memory_problems(pool(), replace(MACHINE, available_bytes=None)) == []


def test_volumes_need_room_only_with_a_ram_tier() -> None:
    assert arena_bytes(pool()) == 2 * (16 + 16) * MIB
    assert arena_bytes(pool(spec__cache=ABSENT)) == 0


@pytest.mark.parametrize(("cores", "replicas", "threads"), [(2, 2, 1), (8, 2, 4), (7, 2, 3), (2, 5, 1), (4, 1, 4)])
def test_engines_share_the_cores_and_each_has_one(cores: int, replicas: int, threads: int) -> None:
    assert threads_per_engine(cores, replicas) == threads


def test_managed_nodes_are_planned_only_where_memcached_is() -> None:
    external = {"external": {"addresses": ["mc-0:11211"]}}
    assert num_managed_nodes(pool(), has_memcached=True) == 1
    assert num_managed_nodes(pool(), has_memcached=False) == 0
    assert num_managed_nodes(pool(spec__cache=ABSENT), has_memcached=True) == 0
    assert (
        num_managed_nodes(pool(spec__cache__pool=external, spec__cache__secretRef={"name": "s"}), has_memcached=True)
        == 0
    )
