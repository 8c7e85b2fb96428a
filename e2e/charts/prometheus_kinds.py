"""The kinds of Prometheus' operator, as its module on the Go proxy has them."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

MODULE = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
KINDS = ("servicemonitors", "podmonitors", "prometheusrules")
DOWNLOAD_SECONDS = 300.0


def prometheus_kinds() -> str:
    """Return the manifests of the CRDs that the chart makes objects of."""
    if shutil.which("go") is None:
        pytest.skip("the kinds of Prometheus' operator come from a Go module, and there is no go")
    command = ["go", "mod", "download", "-json", MODULE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=True)
    folder = Path(json.loads(done.stdout)["Dir"]) / "example" / "prometheus-operator-crd"
    return "\n---\n".join((folder / f"monitoring.coreos.com_{kind}.yaml").read_text("utf-8") for kind in KINDS)
