"""The ConfigMap of what can change while pods run: the live settings, and which nodes the pool has.

Nodes are the ordinals that are wanted, by name: neither a restart nor readiness moves a block to another node.
"""

import json
from collections.abc import Mapping
from typing import Any

from pagoda_operator import names
from pagoda_operator.children.inputs import Manifest, Owner
from pagoda_operator.children.memcached import node_address
from pagoda_operator.children.objects import manifest
from pagoda_operator.children.tiers import managed_of
from pagoda_protocol.live import LIVE_FILE
from pagoda_protocol.pool.spec import ExternalPool, InferencePool

_COMPONENT = "live"
_GENERATION = "generation"


def config_map(pool: InferencePool, owner: Owner, observed: Mapping[str, str] | None) -> Manifest:
    """Return the ConfigMap; `observed` is the data of the one that is there."""
    data = {
        LIVE_FILE: _text(_live_settings(pool, owner, observed or {})),
        names.POOL_NODES_KEY: _text({"nodes": _nodes(pool, owner)}),
    }
    labels = names.shared_labels(owner.name, _COMPONENT)
    return manifest("v1", "ConfigMap", owner, names.live_name(owner.name), labels, data=data)


def _live_settings(pool: InferencePool, owner: Owner, observed: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings with the generation at which one of them last changed.

    So what engines say of a generation in /ready stays true of later ones that change nothing here.
    """
    settings = {"idleSeconds": pool.cache.idle_seconds, "sharedPrefixes": list(pool.tenancy.shared_prefixes)}
    before = _parsed(observed.get(LIVE_FILE, ""))
    generation = before.pop(_GENERATION, None)
    is_same = before == settings and isinstance(generation, int) and 1 <= generation <= owner.generation
    return {_GENERATION: generation if is_same else owner.generation, **settings}


def _nodes(pool: InferencePool, owner: Owner) -> list[dict[str, str]]:
    if isinstance(pool.cache.pool, ExternalPool):
        return [{"name": address, "address": address} for address in pool.cache.pool.addresses]
    managed = managed_of(pool)
    return [
        {"name": names.memcached_pod_name(owner.name, ordinal), "address": node_address(owner, ordinal)}
        for ordinal in range(managed.replicas if managed is not None else 0)
    ]


def _parsed(text: str) -> dict[str, Any]:
    """Return what somebody may have written into the ConfigMap, as far as it is settings at all."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
