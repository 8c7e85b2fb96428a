"""The clusters of the stories, each started when the first story asks for it and gone with the session."""

import os
from collections.abc import Iterator

import pytest

from e2e.cluster import chosen, part_images
from e2e.cluster.handle import Cluster, NodeCluster


@pytest.fixture(scope="session")
def api_server() -> Iterator[Cluster]:
    """A real API server; whether controllers stand behind it, `has_controllers` says."""
    with chosen.api_server() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def control_plane(api_server: Cluster) -> Cluster:
    """A real API server, controller manager and scheduler."""
    if not api_server.has_controllers:
        pytest.skip("KUBEBUILDER_ASSETS gives an API server alone, and this story needs controllers")
    return api_server


@pytest.fixture(scope="session")
def node_cluster() -> Iterator[NodeCluster]:
    """A real cluster whose node has the images of all parts."""
    if os.geteuid() != 0:
        pytest.skip("a node needs root")
    with chosen.with_node() as cluster:
        cluster.image_bytes.update(part_images.import_all(cluster.node))
        yield cluster
