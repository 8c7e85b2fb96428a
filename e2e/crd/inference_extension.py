"""The Gateway API Inference Extension's CRD, whose kind is an InferencePool too, in another group."""

import os
from pathlib import Path

from e2e.cluster import binaries

VERSION = "v1.1.0"
MODULE = "sigs.k8s.io/gateway-api-inference-extension"
SUM = "h1:MqRYk+3LNUWB0MbTgTZVhmJGNDTvm8l3ze4MOlzR7MU="
RESOURCE = "inferencepools.inference.networking.k8s.io"
FILE = "inference.networking.k8s.io_inferencepools.yaml"
POOL = """
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: chat}
spec:
  selector: {matchLabels: {app: somebody-elses}}
  targetPorts: [{number: 8000}]
  endpointPickerRef: {name: picker, port: {number: 9002}}
"""


def crd_file() -> Path:
    """Return the CRD's manifest from the cache, fetched with Go's own client if it is not there."""
    kept = binaries.cache_root() / f"inference-extension-{VERSION}.yaml"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        draft = kept.with_name(f"{kept.name}.{os.getpid()}")
        draft.write_bytes((_module() / "config" / "crd" / "bases" / FILE).read_bytes())
        draft.rename(kept)
    return kept


def _module() -> Path:
    answer = binaries.module(f"{MODULE}@{VERSION}")
    assert answer["Sum"] == SUM, "the module is not the one that was looked at"
    return Path(answer["Dir"])
