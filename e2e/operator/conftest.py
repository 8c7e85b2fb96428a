"""The control plane that the operator's stories need: one that knows what a pool is."""

import pytest

from e2e.cluster.handle import Cluster
from e2e.crd.pools import install


@pytest.fixture(scope="session")
def knowing(control_plane: Cluster) -> Cluster:
    """A control plane with the CRD."""
    install(control_plane)
    return control_plane
