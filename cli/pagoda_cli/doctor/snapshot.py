"""A cluster as it was read: plain lists, so that every check is a function that a table can test.

What could not be read is None, never empty, and stands in `unread`: a check says nothing about what nobody saw.
"""

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pagoda_cli.doctor import names
from pagoda_protocol.pool.spec import InferencePool, SpecError, parse_pool

Manifest = Mapping[str, Any]
Manifests = tuple[Manifest, ...]


@dataclass(frozen=True)
class Unread:
    """Something that was not read: of `what`, because the right is missing or the call failed."""

    what: str
    """As one asks for it: "list pods in namespace shop"."""
    reason: str
    is_forbidden: bool


@dataclass(frozen=True)
class Answer:
    """What a pod's engine said to `/ready` and its sidecar to `/v1/summary`; None, and why, where nothing came."""

    ready: Mapping[str, Any] | None
    ready_reason: str
    summary: Mapping[str, Any] | None
    summary_reason: str


@dataclass(frozen=True)
class Review:
    """Whether the operator with this service account may do something."""

    account: str
    """namespace/name"""
    right: str
    is_allowed: bool


@dataclass(frozen=True)
class Snapshot:
    """What was read. Namespaced objects are those of the namespaces that have pools, pods those of pools alone."""

    now: datetime.datetime
    crd: Manifest | None = None
    """None: it is absent, unless `unread` says otherwise."""
    other_crd: Manifest | None = None
    is_crd_known: bool = True
    pools: Manifests = ()
    operators: Manifests | None = ()
    """Deployments of the chart."""
    operator_pods: Manifests = ()
    leases: Mapping[tuple[str, str], Manifest | None] = field(default_factory=dict)
    """By namespace and name; None: there is none of it."""
    reviews: tuple[Review, ...] = ()
    nodes: Manifests | None = None
    storage_classes: Manifests | None = None
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Labels by name."""
    deployments: Manifests | None = None
    stateful_sets: Manifests | None = None
    services: Manifests | None = None
    pods: Manifests | None = None
    policies: Manifests | None = None
    budgets: Manifests | None = None
    warnings: Manifests = ()
    """Events of type Warning."""
    secrets: Mapping[tuple[str, str], frozenset[str] | None] = field(default_factory=dict)
    """Keys by namespace and name; None: there is no such Secret. One that may not be read is absent here."""
    answers: Mapping[tuple[str, str], Answer] = field(default_factory=dict)
    """By namespace and name of the pod."""
    num_not_asked: int = 0
    unread: tuple[Unread, ...] = ()

    def pods_of(self, pool: Manifest, part: str) -> Manifests:
        """Return the pods of a pool's part that are not on their way out."""
        wanted = {names.POOL_LABEL: name_of(pool), names.PART_LABEL: part}
        return tuple(
            pod
            for pod in self.pods or ()
            if namespace_of(pod) == namespace_of(pool)
            and wanted.items() <= labels_of(pod).items()
            and not pod["metadata"].get("deletionTimestamp")
        )


def name_of(manifest: Manifest) -> str:
    """Return an object's name."""
    return str(manifest["metadata"]["name"])


def namespace_of(manifest: Manifest) -> str:
    """Return an object's namespace."""
    return str(manifest["metadata"].get("namespace", ""))


def labels_of(manifest: Manifest) -> Mapping[str, str]:
    """Return an object's labels."""
    labels: Mapping[str, str] = manifest["metadata"].get("labels") or {}
    return labels


def find(manifests: Iterable[Manifest], namespace: str, name: str) -> Manifest | None:
    """Return the object of this name."""
    return next((item for item in manifests if (namespace_of(item), name_of(item)) == (namespace, name)), None)


def condition(manifest: Manifest, kind: str) -> Mapping[str, Any]:
    """Return a condition of an object; empty if it has none of that kind."""
    conditions = (manifest.get("status") or {}).get("conditions") or ()
    found: Mapping[str, Any] = next((item for item in conditions if item.get("type") == kind), {})
    return found


def age_seconds(snapshot: Snapshot, moment: str | None) -> float:
    """Return how long ago a time as Kubernetes writes it was; 0 for none."""
    if not moment:
        return 0.0
    return (snapshot.now - datetime.datetime.fromisoformat(moment)).total_seconds()


def spec_of(pool: Manifest) -> InferencePool | SpecError:
    """Return a pool's spec as the operator reads it, or what is wrong with it."""
    try:
        return parse_pool(pool)
    except SpecError as error:
        return error
