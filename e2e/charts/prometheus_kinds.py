"""The kinds of Prometheus' operator, as its module on the Go proxy has them."""

import shutil
from pathlib import Path

import pytest

from e2e.cluster import binaries

MODULE = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
KINDS = ("servicemonitors", "podmonitors", "prometheusrules")


def prometheus_kinds() -> str:
    """Return the manifests of the CRDs that the chart makes objects of."""
    if shutil.which("go") is None:
        pytest.skip("the kinds of Prometheus' operator come from a Go module, and there is no go")
    folder = Path(binaries.module(MODULE)["Dir"]) / "example" / "prometheus-operator-crd"
    return "\n---\n".join((folder / f"monitoring.coreos.com_{kind}.yaml").read_text("utf-8") for kind in KINDS)
