"""The live ConfigMap: what it says, and which generation it says it with."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from pagoda_operator.children import Seen
from pagoda_protocol.live import parse_live
from pagoda_protocol.pool.quantities import MEBI
from pagoda_protocol.pool.spec import InferencePool, parse_pool
from tests.operator.children.pools import MANAGED, PEERS, POOLS, children_of, manifest


def data_of(pool: InferencePool, observed: Mapping[str, str] | None = None, generation: int = 1) -> dict[str, str]:
    seen = Seen(live=observed, policy=PEERS)
    data: dict[str, str] = children_of(pool, seen, generation)["ConfigMap", f"{pool.name}-live"]["data"]
    return data


def generation_in(data: Mapping[str, str]) -> int:
    return parse_live(data["live.json"]).generation


def changed(pool: InferencePool, idle_seconds: int) -> InferencePool:
    return replace(pool, cache=replace(pool.cache, idle_seconds=idle_seconds))


def test_engines_and_routers_can_read_it() -> None:
    settings = parse_live(data_of(POOLS["ram"], generation=7)["live.json"])
    assert (settings.generation, settings.idle_seconds) == (7, 60)
    assert settings.shared_prefixes == ("You are a “helpful” assistant.\n",)


def test_its_generation_is_the_pools_when_a_setting_changes_and_stays_while_none_does() -> None:
    pool = POOLS["ram"]
    first = data_of(pool, None, generation=1)
    assert generation_in(first) == 1
    unrelated = data_of(replace(pool, replicas=9), first, generation=4)
    assert unrelated == first
    later = data_of(changed(pool, 30), unrelated, generation=5)
    assert generation_in(later) == 5
    assert generation_in(data_of(pool, later, generation=6)) == 6, "back is a change too"


def test_more_or_fewer_nodes_are_no_change_of_the_settings() -> None:
    managed = parse_pool(manifest("chat", {"cache": {"ram": {"size": "1Gi"}, "pool": MANAGED}}))
    assert managed.cache.pool is not None
    first = data_of(managed)
    more = replace(managed, cache=replace(managed.cache, pool=replace(managed.cache.pool, replicas=5)))
    second = data_of(more, first, generation=2)
    assert second["live.json"] == first["live.json"]
    assert second["pool-nodes.json"] != first["pool-nodes.json"]


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{", "null", "[" * 10_000, '{"generation": 1}',
        '{"generation": "1", "idleSeconds": 60, "sharedPrefixes": []}',
        '{"generation": 0, "idleSeconds": 20, "sharedPrefixes": []}',
        '{"generation": 99, "idleSeconds": 20, "sharedPrefixes": []}',
        '{"idleSeconds": 20, "sharedPrefixes": []}',
    ],
)  # fmt: skip
def test_what_somebody_else_wrote_there_is_written_over(text: str) -> None:
    assert generation_in(data_of(POOLS["least"], {"live.json": text}, generation=3)) == 3
    assert generation_in(data_of(POOLS["least"], {}, generation=3)) == 3


def test_its_nodes_are_the_wanted_ordinals_by_name() -> None:
    nodes = json.loads(data_of(POOLS["all-tiers"])["pool-nodes.json"])["nodes"]
    assert nodes == [
        {
            "name": f"all-tiers-memcached-{ordinal}",
            "address": f"all-tiers-memcached-{ordinal}.all-tiers-memcached.models.svc:11211",
        }
        for ordinal in range(3)
    ]
    assert json.loads(data_of(POOLS["least"])["pool-nodes.json"]) == {"nodes": []}


def test_nodes_that_somebody_else_runs_are_named_by_their_addresses() -> None:
    nodes = json.loads(data_of(POOLS["external"])["pool-nodes.json"])["nodes"]
    assert [node["address"] for node in nodes] == [
        "mc-0.example.com:11211",
        "[2001:db8::1]:11212",
        "mc-1.example.com:11211",
    ]
    assert all(node["name"] == node["address"] for node in nodes)


@pytest.mark.parametrize("character", ["a", "\x01", "\u2028", "\U0001f6d5", '"'])
def test_all_that_a_pool_may_say_fits_into_a_config_map(character: str) -> None:
    """The parser bounds the prefixes; Kubernetes takes a mebibyte of keys and values."""
    nodes = {"managed": {"replicas": 100, "memoryPerReplica": "1Gi"}}
    prefixes = [character * 1023 + chr(0x100 + index) for index in range(128)]
    spec = {"tenancy": {"sharedPrefixes": prefixes}, "cache": {"ram": {"size": "1Gi"}, "pool": nodes}}
    data = data_of(parse_pool(manifest("a" * 40, spec)))
    assert sum(len(key) + len(text.encode()) for key, text in data.items()) <= MEBI
