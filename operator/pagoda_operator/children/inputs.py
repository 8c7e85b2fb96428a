"""What rendering is given beside the pool, and what it gives back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Images:
    """An image per part, by tag or digest, handed on as they are; a pool may name another for its engines."""

    engine: str
    sidecar: str
    router: str
    memcached: str
    pull_secrets: tuple[str, ...] = ()
    """Names of the Secrets in a pool's namespace with which its pods pull them; none: nothing is said about that."""


@dataclass(frozen=True)
class Owner:
    """The pool's object in the cluster."""

    namespace: str
    name: str
    uid: str
    generation: int


@dataclass(frozen=True)
class PolicyPeers:
    """Who may reach pods beside a pool's own parts, and where the API server is."""

    operator_namespace: Mapping[str, str]
    """Labels of the namespace the operator runs in; none: it may not scrape."""
    metrics_namespace: Mapping[str, str]
    """Labels of namespaces whose pods scrape metrics; none: nobody does."""
    api_server_ports: tuple[int, ...] = (443, 6443)
    """Its Service's and its own."""


@dataclass(frozen=True)
class Seen:
    """What rendering has to know of the cluster."""

    live: Mapping[str, str] | None
    """Data of the live ConfigMap as it is; None: there is none."""
    policy: PolicyPeers
