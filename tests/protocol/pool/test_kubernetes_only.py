from pathlib import Path

import pytest

from pagoda_protocol.pool.kubernetes_only import KUBERNETES_ONLY
from pagoda_protocol.pool.spec import parse_pool
from tests.protocol.pool.manifests import changed, minimal

MANUAL = Path(__file__).parents[3] / "docs" / "manifest.md"


def in_use(manifest):
    pool = parse_pool(manifest)
    return [field.path for field in KUBERNETES_ONLY if field.is_set(pool)]


def test_a_pool_that_asks_for_nothing_of_kubernetes_uses_none_of_its_fields():
    assert in_use(minimal()) == []


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("spec engine image", "engine:1", "spec.engine.image"),
        ("spec engine resources limits cpu", 2, "spec.engine.resources.limits.cpu"),
        ("spec engine resources limits nvidia.com/gpu", 1, 'spec.engine.resources.limits."nvidia.com/gpu"'),
        ("spec engine rollout maxSurge", 2, "spec.engine.rollout"),
        ("spec engine podTemplate nodeSelector", {"pool": "gpu"}, "spec.engine.podTemplate"),
        (
            "spec cache",
            {"ram": {"size": "1Gi"}, "disk": {"size": "1Gi", "storageClassName": "fast"}},
            "spec.cache.disk.storageClassName",
        ),
        ("spec routing replicas", 2, "spec.routing.replicas"),
        ("spec networkPolicy mode", "None", "spec.networkPolicy.mode"),
    ],
)
def test_a_field_of_kubernetes_is_named_when_it_is_set(path, value, named):
    assert in_use(changed(path, value)) == [named]


def test_every_field_says_why():
    assert all(field.why for field in KUBERNETES_ONLY)


def test_the_manual_names_every_field_with_its_reason():
    rows = [f"| `{field.path}` | {field.why} |" for field in KUBERNETES_ONLY]
    manual = MANUAL.read_text("utf-8").splitlines()
    assert [row for row in rows if row not in manual] == []
