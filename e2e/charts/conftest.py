"""A cluster in which the kind comes and goes with the charts, so no other story may use it meanwhile."""

import os
from collections.abc import Iterator

import pytest

from e2e.charts.prometheus_kinds import prometheus_kinds
from e2e.charts.releases import KIND, Releases
from e2e.cluster import chosen, clusters
from e2e.cluster.handle import Cluster, KubectlError


@pytest.fixture(scope="package")
def bare_cluster() -> Iterator[Cluster]:
    """A control plane that knows no InferencePool: one of its own, unless KUBECONFIG names one to use.

    It is gone before other stories measure anything.
    """
    if os.environ.get("KUBECONFIG"):
        with chosen.api_server() as cluster:
            if knows_the_kind(cluster):
                pytest.skip(f"these stories install and remove {KIND}, which is there already")
            yield cluster
        return
    with clusters.claimed() as where, Cluster(where.kubeconfig, clusters.up(where)) as cluster:
        yield cluster


@pytest.fixture
def releases(bare_cluster: Cluster) -> Iterator[Releases]:
    """The releases of one story; in the end they, their namespaces and the kind are gone."""
    made = Releases(bare_cluster)
    yield made
    made.remove()


@pytest.fixture(scope="package")
def monitored_cluster(bare_cluster: Cluster) -> Cluster:
    """The same with the kinds of Prometheus' operator."""
    bare_cluster.apply(prometheus_kinds())
    return bare_cluster


def knows_the_kind(cluster: Cluster) -> bool:
    """Say whether the cluster has the CRD."""
    try:
        cluster.kubectl("get", "crd", KIND)
    except KubectlError:
        return False
    return True
