"""What a pool may say about its engine pods in Kubernetes' own words: a closed list, checked and handed on.

What the operator sets itself (its labels, variables, folders and volumes) may not be set here, so that a merge never
has to choose between two wills.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pagoda_protocol.pool import pod_shapes
from pagoda_protocol.pool.reader import Reader
from pagoda_protocol.pool.texts import OBJECT_NAME

__all__ = ["PodTemplate", "read_pod_template"]


@dataclass(frozen=True)
class PodTemplate:
    """Wishes for engine pods, each as it stands in a Pod's manifest; an empty one asks for nothing."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    affinity: Mapping[str, Any] = field(default_factory=dict)
    topology_spread_constraints: tuple[Mapping[str, Any], ...] = ()
    volumes: tuple[Mapping[str, Any], ...] = ()
    volume_mounts: tuple[Mapping[str, Any], ...] = ()
    """Of the engine's container, each of a volume that stands in `volumes`."""
    env: tuple[Mapping[str, Any], ...] = ()
    """Of the engine's container."""
    priority_class_name: str | None = None
    runtime_class_name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


def read_pod_template(template: Reader) -> PodTemplate:
    """Read `spec.engine.podTemplate`."""
    read = PodTemplate(
        node_selector=template.plain("nodeSelector", pod_shapes.NODE_SELECTOR) or {},
        tolerations=tuple(template.plain("tolerations", pod_shapes.TOLERATIONS) or ()),
        affinity=template.plain("affinity", pod_shapes.AFFINITY) or {},
        topology_spread_constraints=tuple(template.plain("topologySpreadConstraints", pod_shapes.SPREAD) or ()),
        volumes=tuple(template.plain("volumes", pod_shapes.VOLUMES) or ()),
        volume_mounts=tuple(template.plain("volumeMounts", pod_shapes.VOLUME_MOUNTS) or ()),
        env=tuple(template.plain("env", pod_shapes.ENV) or ()),
        priority_class_name=template.optional("priorityClassName", OBJECT_NAME, None),
        runtime_class_name=template.optional("runtimeClassName", OBJECT_NAME, None),
        labels=template.plain("labels", pod_shapes.LABELS) or {},
        annotations=template.plain("annotations", pod_shapes.ANNOTATIONS) or {},
    )
    _check_mounts(template, read)
    return read


def _check_mounts(template: Reader, read: PodTemplate) -> None:
    names = [volume.get("name") for volume in read.volumes]
    for index, mount in enumerate(read.volume_mounts):
        if (name := mount.get("name")) is not None and name not in names:
            path = f"{template.path}.volumeMounts[{index}].name"
            template.problems.add(path, f"no volume is named {name!r:.80}; add it to {template.path}.volumes")
