"""The cluster with a node, which is gone before other stories measure anything."""

import os
from collections.abc import Iterator

import pytest

from e2e.cluster import chosen, part_images
from e2e.cluster.handle import NodeCluster


@pytest.fixture(scope="package")
def node_cluster() -> Iterator[NodeCluster]:
    """A real cluster whose node has the images of all parts."""
    if os.geteuid() != 0:
        pytest.skip("a node needs root")
    with chosen.with_node() as cluster:
        cluster.image_bytes.update(part_images.import_all(cluster.node))
        yield cluster
