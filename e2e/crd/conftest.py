"""One namespace for all tests of the CRD, on an API server that knows the CRD of this tree."""

from collections.abc import Iterator

import pytest

from e2e.cluster.handle import Cluster
from e2e.crd.pools import Pools, connected, install


@pytest.fixture(scope="session")
def knowing(api_server: Cluster) -> Cluster:
    """A cluster that knows InferencePools."""
    install(api_server)
    return api_server


@pytest.fixture(scope="session")
def pools(knowing: Cluster) -> Iterator[Pools]:
    with knowing.namespace("crd") as namespace, connected(knowing, namespace) as given:
        yield given
