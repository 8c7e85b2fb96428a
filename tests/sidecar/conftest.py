"""One real sidecar process for each module that asks: starting one costs a second."""

import secrets
from collections.abc import Iterator

import pytest

from tests.sidecar.support import SidecarProcess, sidecar_process


@pytest.fixture(scope="module")
def shared() -> Iterator[SidecarProcess]:
    with sidecar_process() as process:
        yield process


@pytest.fixture
def sidecar(shared: SidecarProcess) -> SidecarProcess:
    """The module's process; each test's namespace finds the arena empty."""
    shared.namespace = secrets.token_bytes(32)
    return shared
