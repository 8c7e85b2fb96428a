"""Those CRDs of the Gateway API Inference Extension whose kind is an InferencePool too, in its two groups."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from e2e.cluster import binaries
from e2e.cluster.handle import Cluster, KubectlError
from e2e.crd.pools import wait_established

VERSION = "v1.1.0"
MODULE = "sigs.k8s.io/gateway-api-inference-extension"
SUM = "h1:MqRYk+3LNUWB0MbTgTZVhmJGNDTvm8l3ze4MOlzR7MU="
RESOURCE = "inferencepools.inference.networking.k8s.io"
EXPERIMENTAL = "inferencepools.inference.networking.x-k8s.io"
POOLS = """
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: chat}
spec:
  selector: {matchLabels: {app: somebody-elses}}
  targetPorts: [{number: 8000}]
  endpointPickerRef: {name: picker, port: {number: 9002}}
---
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferencePool
metadata: {name: chat}
spec:
  selector: {app: somebody-elses}
  targetPortNumber: 8000
  extensionRef: {name: picker}
"""


@contextlib.contextmanager
def installed(cluster: Cluster) -> Iterator[None]:
    """Have the API server know them while the context is open; what was there before stays."""
    try:
        cluster.kubectl("get", "crd", RESOURCE)
    except KubectlError:
        manifests = str(crds_file())
        cluster.kubectl("create", "-f", manifests)
        try:
            for resource in (RESOURCE, EXPERIMENTAL):
                wait_established(cluster, resource)
            yield
        finally:
            for resource in (RESOURCE, EXPERIMENTAL):
                cluster.remove_kind(resource)
    else:
        yield


def crds_file() -> Path:
    """Return the CRDs' manifests from the cache, fetched with Go's own client if they are not there."""
    kept = binaries.cache_root() / f"inference-extension-pools-{VERSION}.yaml"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        draft = kept.with_name(f"{kept.name}.{os.getpid()}")
        bases = _module() / "config" / "crd" / "bases"
        draft.write_text("\n---\n".join(path.read_text() for path in sorted(bases.glob("*_inferencepools.yaml"))))
        draft.rename(kept)
    return kept


def _module() -> Path:
    answer = binaries.module(f"{MODULE}@{VERSION}")
    assert answer["Sum"] == SUM, "the module is not the one that was looked at"
    return Path(answer["Dir"])
