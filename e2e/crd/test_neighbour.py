"""Beside the Gateway API Inference Extension, whose InferencePool is another: each by its name, neither in the way.

The other tests of this folder run without it.
"""

from collections.abc import Iterator

import pytest
import yaml

from e2e.cluster.handle import Cluster, KubectlError
from e2e.crd import inference_extension
from e2e.crd.pools import RESOURCE, wait_established
from tests.protocol.pool.manifests import minimal

THEIRS = inference_extension.RESOURCE
THEIR_GROUP = THEIRS.partition(".")[2]


@pytest.fixture(scope="module")
def both(knowing: Cluster) -> Iterator[Cluster]:
    """A cluster that knows both kinds; theirs is taken away again if it was brought here."""
    try:
        knowing.kubectl("get", "crd", THEIRS)
    except KubectlError:
        knowing.kubectl("create", "-f", str(inference_extension.crd_file()))
        wait_established(knowing, THEIRS)
        try:
            yield knowing
        finally:
            knowing.kubectl("delete", "crd", THEIRS, "--timeout=60s")
        return
    yield knowing


@pytest.fixture(scope="module")
def namespace(both: Cluster) -> Iterator[str]:
    """A namespace with a pool of each kind and of one name."""
    with both.namespace("crd-both") as name:
        for text in (inference_extension.POOL, yaml.safe_dump(minimal())):
            both.kubectl("create", "--namespace", name, "-f", "-", input=text)
        yield name


def conditions(cluster: Cluster, crd: str) -> dict[str, str]:
    found = cluster.kubectl_json("get", "crd", crd)["status"]["conditions"]
    return {condition["type"]: condition["status"] for condition in found}


def test_both_keep_all_their_names(both: Cluster) -> None:
    for crd in (RESOURCE, THEIRS):
        assert conditions(both, crd).items() >= {"NamesAccepted": "True", "Established": "True"}.items()


@pytest.mark.parametrize(
    ("word", "group"),
    [(RESOURCE, "pagoda-kv.io"), ("pgp", "pagoda-kv.io"), (THEIRS, THEIR_GROUP), ("infpool", THEIR_GROUP)],
)
def test_full_and_short_names_mean_one_kind_each(both: Cluster, namespace: str, word: str, group: str) -> None:
    assert both.kubectl("get", word, "-n", namespace, "-o", "name").split() == [f"inferencepool.{group}/chat"]


def test_scaling_by_the_full_name_changes_ours(both: Cluster, namespace: str) -> None:
    both.kubectl("scale", f"{RESOURCE}/chat", "--replicas=4", "-n", namespace)
    assert both.kubectl_json("get", RESOURCE, "chat", "-n", namespace)["spec"]["replicas"] == 4


def test_explain_by_the_full_name_is_about_ours(both: Cluster) -> None:
    assert "GROUP:      pagoda-kv.io" in both.kubectl("explain", f"{RESOURCE}.spec.cache.pool")


def test_deleting_one_leaves_the_other_of_the_same_name(both: Cluster, namespace: str) -> None:
    both.kubectl("delete", f"{RESOURCE}/chat", "-n", namespace, "--timeout=20s")
    assert both.kubectl("get", THEIRS, "-n", namespace, "-o", "name").split()
    assert not both.kubectl("get", RESOURCE, "-n", namespace, "-o", "name").split()
