"""The fields of a spec that mean something in Kubernetes alone, so that `pagoda up` can say so in a line each."""

from collections.abc import Callable
from dataclasses import dataclass

from pagoda_protocol.pool.spec import InferencePool, PodTemplate, Rollout


@dataclass(frozen=True)
class KubernetesField:
    """A field without effect on one machine, why, and whether a pool asks for it."""

    path: str
    why: str
    is_set: Callable[[InferencePool], bool]


KUBERNETES_ONLY = (
    KubernetesField(
        "spec.engine.image",
        "engines are processes of this installation, not containers",
        lambda pool: pool.engine.image is not None,
    ),
    KubernetesField(
        "spec.engine.resources.limits.cpu",
        "the cores of this machine are divided among the replicas",
        lambda pool: pool.engine.resources.millicores is not None,
    ),
    KubernetesField(
        'spec.engine.resources.limits."nvidia.com/gpu"',
        "engines started here use the CPU",
        lambda pool: pool.engine.resources.num_gpus > 0,
    ),
    KubernetesField(
        "spec.engine.rollout",
        "a changed manifest is used from the next start on",
        lambda pool: pool.engine.rollout != Rollout(None, None),
    ),
    KubernetesField(
        "spec.engine.podTemplate",
        "engines are processes of this machine, not pods",
        lambda pool: pool.engine.pod_template != PodTemplate(),
    ),
    KubernetesField(
        "spec.cache.disk.storageClassName",
        "disk tiers are folders of this machine",
        lambda pool: pool.cache.disk is not None and pool.cache.disk.storage_class_name is not None,
    ),
    KubernetesField(
        "spec.routing.replicas",
        "one router serves the one port",
        lambda pool: pool.routing.replicas > 1,
    ),
    KubernetesField(
        "spec.networkPolicy.mode",
        "processes of one machine have no NetworkPolicy",
        lambda pool: pool.network_policy != "Managed",
    ),
)
