"""The real API server takes the children of every golden pool as they are, and restricted Pod Security every pod.

Nothing is kept: all of it is sent as a dry run, for whose answer the server does everything but store.
"""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from e2e.cluster.handle import Cluster, KubectlError
from pagoda_operator.children import render, render_secrets
from tests.operator.children.pools import IMAGES, POOLS, SEEN, owner_of

Json = dict[str, Any]
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
CLASSES = [
    {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "important"}, "value": 1000},
    {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"},
]


@pytest.fixture(scope="module")
def namespace(control_plane: Cluster) -> Iterator[str]:
    """A restricted namespace in which the pools' service accounts, and the classes one of them names, are there."""
    with control_plane.namespace("children", RESTRICTED) as name, classes(control_plane):
        accounts = [without_owner(child) for child in children(name) if child["kind"] == "ServiceAccount"]
        control_plane.apply(text_of(accounts))
        yield name


@contextlib.contextmanager
def classes(cluster: Cluster) -> Iterator[None]:
    cluster.apply(text_of(CLASSES))
    try:
        yield
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "-f", "-", input=text_of(CLASSES))


def children(namespace: str) -> list[Json]:
    """Return what all pools want, Secrets included."""
    wanted: list[Json] = []
    images = replace(IMAGES, pull_secrets=("registry", "mirror"))
    for pool in POOLS.values():
        owner = replace(owner_of(pool), namespace=namespace)
        wanted += [*render_secrets(pool, owner, bytes), *render(pool, owner, images, SEEN)]
    return wanted


def without_owner(manifest: Json) -> Json:
    """Return a manifest that the garbage collector leaves alone: its owner is none of this cluster's."""
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "ownerReferences"}
    return {**manifest, "metadata": metadata}


def text_of(manifests: list[Json]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})


def dry_run(cluster: Cluster, manifests: list[Json]) -> list[Json]:
    """Apply as the operator does, without a trace; return what would be stored."""
    answer = cluster.kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "--field-manager=pagoda-operator",
        "-o", "json", "-f", "-", input=text_of(manifests),
    )  # fmt: skip
    items: list[Json] = json.loads(answer)["items"]
    return items


def lost(wanted: Any, stored: Any, path: str = "") -> list[str]:
    """Return the paths at which what is stored is not what was sent, as text; what was added is no loss.

    A false is stored by leaving it out.
    """
    if isinstance(wanted, dict) and isinstance(stored, dict):
        return [where for key in wanted for where in lost(wanted[key], stored.get(key), f"{path}.{key}")]
    if isinstance(wanted, list) and isinstance(stored, list) and len(wanted) == len(stored):
        pairs = zip(wanted, stored, strict=True)
        return [where for index, pair in enumerate(pairs) for where in lost(*pair, f"{path}[{index}]")]
    is_kept = wanted == stored or (wanted is False and stored is None)
    return [] if is_kept else [f"{path}: {wanted!r} is stored as {stored!r}"]


def test_the_api_server_stores_every_child_of_every_pool_as_it_was_sent(control_plane: Cluster, namespace: str) -> None:
    wanted = children(namespace)
    stored = dry_run(control_plane, wanted)
    assert len(stored) == len(wanted)
    for sent, kept in zip(wanted, stored, strict=True):
        assert kept["kind"] == sent["kind"]
        assert lost(sent, kept) == [], f"{sent['kind']} {sent['metadata']['name']}"


def pods(namespace: str) -> list[Json]:
    """Return one pod of each workload, as its controller would make it."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                **child["spec"]["template"]["metadata"],
                "name": child["metadata"]["name"],
                "namespace": namespace,
            },
            "spec": child["spec"]["template"]["spec"],
        }
        for child in children(namespace)
        if child["kind"] in ("Deployment", "StatefulSet")
    ]


def test_a_namespace_that_enforces_restricted_pod_security_admits_every_pod(
    control_plane: Cluster, namespace: str
) -> None:
    everything = pods(namespace)
    assert len(everything) > 2 * len(POOLS)
    answer = control_plane.kubectl(
        "create", "--dry-run=server", "--validate=strict", "-o", "name", "-f", "-", input=text_of(everything)
    )
    assert len(answer.split()) == len(everything)


def test_that_namespace_refuses_a_pod_that_asks_for_more(control_plane: Cluster, namespace: str) -> None:
    pod = pods(namespace)[0]
    pod["spec"] = {**pod["spec"], "hostNetwork": True}
    with pytest.raises(KubectlError, match="violates PodSecurity"):
        control_plane.kubectl("create", "--dry-run=server", "-f", "-", input=text_of([pod]))
