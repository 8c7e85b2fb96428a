"""The control plane that the operator's stories need: one that knows what a pool is."""

import json
import time

import pytest

from e2e.cluster.handle import Cluster
from e2e.crd.pools import RESOURCE, install
from tests.operator.children.pools import manifest

LEARNING_SECONDS = 120.0


@pytest.fixture(scope="session")
def knowing(control_plane: Cluster) -> Cluster:
    """A control plane with the CRD."""
    install(control_plane)
    return control_plane


@pytest.fixture(scope="session")
def collecting(knowing: Cluster) -> Cluster:
    """A control plane that removes what a pool owned: Kubernetes looks for kinds that are new every half minute."""
    with knowing.namespace("collecting") as namespace:
        here = ("-n", namespace)
        knowing.apply(json.dumps(manifest("owner", {}) | {"metadata": {"name": "owner", "namespace": namespace}}))
        owner = knowing.kubectl_json("get", RESOURCE, "owner", *here)
        reference = {key: owner[key] for key in ("apiVersion", "kind")}
        reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
        metadata = {"name": "owned", "namespace": namespace, "ownerReferences": [reference]}
        knowing.apply(json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}))
        knowing.kubectl("delete", RESOURCE, "owner", *here)
        end = time.monotonic() + LEARNING_SECONDS
        while knowing.kubectl("get", "configmap", "owned", *here, "--ignore-not-found"):
            assert time.monotonic() < end, f"what a pool owned is there after {LEARNING_SECONDS} s"
            time.sleep(0.5)
    return knowing
