"""The pool's `podTemplate` merged into the engine's pod: wishes are added, what is the operator's stays.

What may not be overridden cannot be said in a pool at all (`pagoda_protocol.pool.pod_shapes`): service accounts,
security contexts, host namespaces, volumes that restricted pods may not have, and the labels, variables, volumes and
folders that the operator sets. Refused here is what only this very pod, or another controller, contradicts:

    volumeMounts     /dev/shm, where the pod has several GPUs
    labels           those by which Deployments tell pods apart
    annotations      AppArmor profiles, which are security contexts, and the cost of a pod's deletion

Everything else is added. Only topologySpreadConstraints replace something, the operator's own default.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pagoda_operator.children import quantities
from pagoda_operator.children.inputs import ChildrenError, Manifest
from pagoda_protocol.pool.quantities import parse_bytes
from pagoda_protocol.pool.spec import PodTemplate

_PATH = "spec.engine.podTemplate"
_CONTROLLERS_LABELS = ("pod-template-hash", "controller-revision-hash")
_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"


def merged(template: Manifest, wishes: PodTemplate) -> Manifest:
    """Return a pod template with the pool's wishes.

    Raises:
        ChildrenError: one of them is for the operator to set.
    """
    _check(template["spec"]["containers"][0], wishes)
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


def _check(engine: Mapping[str, Any], wishes: PodTemplate) -> None:
    folders = [place["mountPath"] for place in engine["volumeMounts"]]
    for index, place in enumerate(wishes.volume_mounts):
        if place["mountPath"] in folders:
            _refuse(f"volumeMounts[{index}].mountPath", f"the operator mounts {place['mountPath']}; mount it elsewhere")
    for label in _present(_CONTROLLERS_LABELS, wishes.labels):
        _refuse(f'labels."{label}"', "is how Deployments tell pods apart; leave it out")
    for annotation in wishes.annotations:
        if annotation.startswith(_APPARMOR):
            _refuse(f'annotations."{annotation}"', "is a security context, which is the operator's; leave it out")
        if annotation == _DELETION_COST:
            _refuse(f'annotations."{annotation}"', "says which pod goes first, which is the operator's; leave it out")


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


def _present(names: Iterable[str], mapping: Mapping[str, str]) -> list[str]:
    return [name for name in names if name in mapping]


def _refuse(field: str, message: str) -> None:
    raise ChildrenError(f"{_PATH}.{field}", message)
