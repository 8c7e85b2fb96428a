"""The Gateway API Inference Extension's CRD, whose kind is an InferencePool too, in another group."""

import json
import os
import subprocess
from pathlib import Path

from e2e.cluster.binaries import cache_root

VERSION = "v1.1.0"
MODULE = "sigs.k8s.io/gateway-api-inference-extension"
SUM = "h1:MqRYk+3LNUWB0MbTgTZVhmJGNDTvm8l3ze4MOlzR7MU="
RESOURCE = "inferencepools.inference.networking.k8s.io"
FILE = "inference.networking.k8s.io_inferencepools.yaml"
DOWNLOAD_SECONDS = 300.0
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
    kept = cache_root() / f"inference-extension-{VERSION}.yaml"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        draft = kept.with_name(f"{kept.name}.{os.getpid()}")
        draft.write_bytes((_module() / "config" / "crd" / "bases" / FILE).read_bytes())
        draft.rename(kept)
    return kept


def _module() -> Path:
    done = subprocess.run(
        ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"],
        cwd="/", capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=True,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    assert answer["Sum"] == SUM, "the module is not the one that was looked at"
    return Path(answer["Dir"])
