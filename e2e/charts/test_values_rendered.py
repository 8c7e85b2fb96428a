"""Every value does something, and no other is taken."""

import copy
import functools
import json
from typing import Any

import pytest

from charts import generate
from e2e.charts.rendered import RefusedError, render, rendered_text


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("replicas=2", "replicas"),
        ("operator.replica=2", "replica"),
        ("crds.enabled=true", "enabled"),
        ("images.operator.name=x", "name"),
        ("images.gateway.tag=x", "gateway"),
        ("monitoring.podMonitor.enabled=true", "podMonitor"),
        ("monitoring.alerts.labels.a=b", "labels"),
        ("test.pool.replicas=1", "replicas"),
        ("rbac.wildcard=true", "wildcard"),
        ("operator.affinity.podAffinities.a=b", "podAffinities"),
        ("images.registry=https://registry.example.com", "images/registry"),
        ("images.registry=registry.example.com/", "images/registry"),
        ("images.engine.registry=Registry.example.com/x", "images/engine/registry"),
        ("images.pullSecrets[0].key=x", "key"),
        ("images.pullSecrets[0].name=Mirror", "pullSecrets/0/name"),
        ("images.pullSecrets[0].name=a,images.pullSecrets[1].name=a", "pullSecrets"),
        ("watch.scope=Everything", "scope"),
        ("operator.replicas=0", "replicas"),
        ("operator.resources.limits.memory=lots", "memory"),
        ("images.engine.digest=sha256:1", "digest"),
        ("watch.namespaces={a}", "namespaces"),
        ("networkPolicy.apiServerPorts={}", "apiServerPorts"),
        ("images.engine.digest=null", "digest"),
        ("images.memcached.repository=null", "repository"),
        ("images.router=null", "router"),
        ("operator=null", "operator"),
        ("monitoring.alerts=null", "alerts"),
    ],
)
def test_a_value_that_the_chart_does_not_know_is_refused_by_name(value: str, named: str) -> None:
    with pytest.raises(RefusedError, match=rf"values don't meet the specifications of the schema[\s\S]*{named}"):
        render("--set", value)


def other(path: str, value: Any) -> Any:
    """Return a valid value of the same type that is not the default."""
    special = {
        "crds.install": False,
        "watch.scope": "Namespaces",
        "watch.namespaces": ["elsewhere"],
        "images.pullPolicy": "Always",
        "images.pullSecrets": [{"name": "mirror"}],
        "operator.tolerations": [{"operator": "Exists"}],
        "operator.affinity": {"podAntiAffinity": {}},
        "operator.resources": {"limits": {"memory": "1Gi"}},
        "monitoring.interval": "7s",
        "monitoring.alerts.runbookUrlPrefix": "https://example.com",
        "networkPolicy.apiServerPorts": [7443],
    }
    if path in special:
        return special[path]
    if path.endswith(".digest"):
        return "sha256:" + "a" * 64
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return {"example.com/key": "changed"} if isinstance(value, dict) else "changed"


def test_every_value_changes_what_is_rendered() -> None:
    for value in generate.values():
        # The kind is long; some values show only beside another.
        base: dict[str, Any] = {"crds": {"install": value.path == "crds.install"}}
        base |= {
            "watch.namespaces": {"watch": {"scope": "Namespaces"}},
            "serviceAccount.create": {"serviceAccount": {"name": "mine"}},
        }.get(value.path, {})
        wanted = copy.deepcopy(base)
        *parents, last = value.path.split(".")
        place = wanted
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = other(value.path, value.default)
        assert rendered_with(json.dumps(wanted)) != rendered_with(json.dumps(base)), f"{value.path} changes nothing"


@functools.cache
def rendered_with(values: str) -> str:
    return rendered_text("--set-json", values)
