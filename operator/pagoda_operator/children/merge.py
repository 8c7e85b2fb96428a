"""The pool's `podTemplate` merged into the engine's pod: wishes are added, what is the operator's stays.

What may not be overridden cannot be said in a pool at all (`pagoda_protocol.pool.pod_shapes`): service accounts,
security contexts, host namespaces, volumes that restricted pods may not have, and the labels, annotations, variables,
volumes and folders that are the operator's. So everything is added, and only topologySpreadConstraints replace
something, the operator's own default.
"""

from collections.abc import Mapping
from typing import Any

from pagoda_operator.children import quantities
from pagoda_operator.children.inputs import Manifest
from pagoda_protocol.pool.quantities import parse_bytes
from pagoda_protocol.pool.spec import PodTemplate


def merged(template: Manifest, wishes: PodTemplate) -> Manifest:
    """Return a pod template with the pool's wishes."""
    annotations = dict(wishes.annotations)
    metadata = {
        **template["metadata"],
        "labels": {**wishes.labels, **template["metadata"]["labels"]},
        **({"annotations": annotations} if annotations else {}),
    }
    return {"metadata": metadata, "spec": _spec(template["spec"], wishes)}


def _spec(spec: Mapping[str, Any], wishes: PodTemplate) -> dict[str, Any]:
    engine, *others = spec["containers"]
    engine = {
        **engine,
        "env": [*engine["env"], *_plain(wishes.env)],
        "volumeMounts": [*engine["volumeMounts"], *_plain(wishes.volume_mounts)],
    }
    wanted = {
        "nodeSelector": _plain(wishes.node_selector),
        "tolerations": _plain(wishes.tolerations),
        "affinity": _plain(wishes.affinity),
        "topologySpreadConstraints": _plain(wishes.topology_spread_constraints),
        "priorityClassName": wishes.priority_class_name,
        "runtimeClassName": wishes.runtime_class_name,
    }
    return {
        **spec,
        "containers": [engine, *others],
        "volumes": [*spec["volumes"], *(_volume(volume) for volume in wishes.volumes)],
        **{key: value for key, value in wanted.items() if value},
    }


def _volume(volume: Mapping[str, Any]) -> dict[str, Any]:
    """Return a volume with its size as the API server stores it."""
    plain: dict[str, Any] = _plain(volume)
    if "ephemeral" in plain:
        requests = plain["ephemeral"]["volumeClaimTemplate"]["spec"]["resources"]["requests"]
        requests["storage"] = quantities.memory(parse_bytes(requests["storage"]))
    return plain


def _plain(value: Any) -> Any:
    """Return JSON of a pool's as lists and dicts of its own."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
