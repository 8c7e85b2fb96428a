"""The clusters of the stories, each started when the first story asks for it and gone with the session."""

from collections.abc import Iterator

import pytest

from e2e.cluster import chosen
from e2e.cluster.handle import Cluster


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
