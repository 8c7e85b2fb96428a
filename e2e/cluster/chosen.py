"""Which cluster the stories run on: the user's own where they say so, else one that is started for the session.

- `KUBECONFIG`: that cluster, if its context is one of `ALLOWED` or is named in `PAGODA_E2E_CONTEXTS` (by commas).
  Stories install CRDs and delete things, so no other context will do.
- `KUBEBUILDER_ASSETS`: a folder with etcd, kube-apiserver and kubectl, of which an API server is made.
- neither: a whole control plane of our own build.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from . import clusters
from .certificates import CONTEXT
from .handle import Cluster, NodeCluster
from .node import Node

# What `make cluster` makes.
ALLOWED = frozenset({CONTEXT})


class RefusedContextError(Exception):
    """The stories will not run on a cluster that nobody gave them."""


@contextlib.contextmanager
def api_server(environment: Mapping[str, str] = os.environ) -> Iterator[Cluster]:
    """Give a cluster of which at least the API server is real."""
    if environment.get("KUBECONFIG"):
        with _existing(environment) as cluster:
            yield cluster
        return
    assets = environment.get("KUBEBUILDER_ASSETS")
    with clusters.claimed() as where:
        programs = clusters.up(where, Path(assets) if assets else None)
        with Cluster(where.kubeconfig, programs, not assets, where.fake_pods) as cluster:
            yield cluster


@contextlib.contextmanager
def with_node() -> Iterator[NodeCluster]:
    """Give a cluster with a node, always one of our own: stories look at it from outside its pods."""
    with clusters.claimed() as where:
        programs = clusters.up(where, with_node=True)
        node = Node(where, programs)
        with NodeCluster(where.kubeconfig, programs, fake_pods=where.fake_pods, node=node) as cluster:
            yield cluster


@contextlib.contextmanager
def _existing(environment: Mapping[str, str]) -> Iterator[Cluster]:
    with Cluster(Path(environment["KUBECONFIG"])) as cluster:
        context = cluster.kubectl("config", "current-context").strip()
        allowed = ALLOWED | set(environment.get("PAGODA_E2E_CONTEXTS", "").split(","))
        if context not in allowed:
            raise RefusedContextError(
                f"KUBECONFIG's context is {context!r}. The stories install CRDs and delete what they made; if that may "
                f"be done there, say so: PAGODA_E2E_CONTEXTS={context}"
            )
        yield cluster
