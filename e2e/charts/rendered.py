"""What Helm renders of a chart, without a cluster."""

import functools
import subprocess
from pathlib import Path
from typing import Any

import yaml

from e2e.charts.releases import CHART, LEAST
from e2e.cluster import binaries

PROMETHEUS = tuple(f"monitoring.coreos.com/v1/{kind}" for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule"))
HELM_SECONDS = 60.0
Manifest = dict[str, Any]


class RefusedError(Exception):
    """Helm would not render; the text is what it said."""


@functools.cache
def _program() -> str:
    there = binaries.folder() / "helm"
    # The cache's lock may be held for minutes by a build of something else.
    return str(there if there.exists() else binaries.helm())


def helm(*arguments: str) -> str:
    """Run Helm and return what it printed."""
    done = subprocess.run([_program(), *arguments], capture_output=True, text=True, timeout=HELM_SECONDS, check=False)
    if done.returncode != 0:
        raise RefusedError(done.stderr + done.stdout)
    return done.stdout


def render(
    *options: str, name: str = "first", apis: tuple[str, ...] = PROMETHEUS, chart: Path = CHART
) -> list[Manifest]:
    """Return the manifests of a release in the namespace `system` of a cluster that serves `apis` too."""
    text = rendered_text(*options, name=name, apis=apis, chart=chart)
    # The parser in C: the kind's schema takes the one in Python a second.
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]


def rendered_text(*options: str, name: str = "first", apis: tuple[str, ...] = PROMETHEUS, chart: Path = CHART) -> str:
    """Return the same as Helm prints it, which is quicker."""
    capabilities = [option for api in apis for option in ("--api-versions", api)]
    return helm("template", name, str(chart), "--namespace", "system", *capabilities, *LEAST, *options)


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    """Return the manifests of some kinds."""
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def operator_pod(manifests: list[Manifest]) -> Manifest:
    """Return the spec of the operator's pods."""
    [deployment] = of_kind(manifests, "Deployment")
    return dict(deployment["spec"]["template"]["spec"])


def operator_container(manifests: list[Manifest]) -> Manifest:
    """Return the operator's container."""
    [container] = operator_pod(manifests)["containers"]
    return dict(container)
