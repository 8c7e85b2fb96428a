"""Beside the Gateway API Inference Extension, whose InferencePool is another: each by its name, neither in the way.

The other tests of this folder run without it.
"""

from collections.abc import Iterator

import pytest
import yaml

from e2e.cluster.handle import Cluster
from e2e.crd import inference_extension
from e2e.crd.pools import RESOURCE
from tests.protocol.pool.manifests import minimal

THEIRS, EXPERIMENTAL = inference_extension.RESOURCE, inference_extension.EXPERIMENTAL


@pytest.fixture(scope="module")
def both(knowing: Cluster) -> Iterator[Cluster]:
    """A cluster that knows all these kinds."""
    with inference_extension.installed(knowing):
        yield knowing


@pytest.fixture(scope="module")
def namespace(both: Cluster) -> Iterator[str]:
    """A namespace with a pool of each kind and of one name."""
    with both.namespace("crd-both") as name:
        for text in (inference_extension.POOLS, yaml.safe_dump(minimal())):
            both.kubectl("create", "--namespace", name, "-f", "-", input=text)
        yield name


def conditions(cluster: Cluster, crd: str) -> dict[str, str]:
    found = cluster.kubectl_json("get", "crd", crd)["status"]["conditions"]
    return {condition["type"]: condition["status"] for condition in found}


def test_each_keeps_all_their_names(both: Cluster) -> None:
    for crd in (RESOURCE, THEIRS, EXPERIMENTAL):
        assert conditions(both, crd).items() >= {"NamesAccepted": "True", "Established": "True"}.items()


@pytest.mark.parametrize(
    ("word", "resource"),
    [(RESOURCE, RESOURCE), ("pgp", RESOURCE), (THEIRS, THEIRS), ("infpool", THEIRS), ("xinfpool", EXPERIMENTAL)],
)
def test_full_and_short_names_mean_one_kind_each(both: Cluster, namespace: str, word: str, resource: str) -> None:
    group = resource.partition(".")[2]
    assert both.kubectl("get", word, "-n", namespace, "-o", "name").split() == [f"inferencepool.{group}/chat"]


def test_scaling_by_the_full_name_changes_ours(both: Cluster, namespace: str) -> None:
    both.kubectl("scale", f"{RESOURCE}/chat", "--replicas=4", "-n", namespace)
    assert both.kubectl_json("get", RESOURCE, "chat", "-n", namespace)["spec"]["replicas"] == 4


def test_explain_by_the_full_name_is_about_ours(both: Cluster) -> None:
    assert "GROUP:      pagoda-kv.io" in both.kubectl("explain", f"{RESOURCE}.spec.cache.pool")


def test_deleting_one_leaves_the_others_of_the_same_name(both: Cluster, namespace: str) -> None:
    both.kubectl("delete", f"{RESOURCE}/chat", "-n", namespace, "--timeout=20s")
    for resource in (THEIRS, EXPERIMENTAL):
        assert both.kubectl("get", resource, "-n", namespace, "-o", "name").split()
    assert not both.kubectl("get", RESOURCE, "-n", namespace, "-o", "name").split()
