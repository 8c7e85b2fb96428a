"""Reading a pool's world from the API server.

Anew at each reconcile, so a decision is never older than the events that led to it. Secrets are never read.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from pagoda_operator import names
from pagoda_operator.changes import is_leaving, key_of
from pagoda_operator.compare import Manifest
from pagoda_operator.kube.api import Api
from pagoda_operator.kube.kinds import CHILDREN, POD, POOL, kind_of
from pagoda_operator.world import World


async def observe(api: Api, namespace: str, name: str) -> World | None:
    """Read all that bears the pool's label; None: the pool is gone, or on its way out."""
    pool = await api.get(POOL, namespace, name)
    if pool is None or is_leaving(pool):
        return None
    selector = f"{names.POOL_LABEL}={name}"
    kinds = (POD, *CHILDREN)
    pods, *children = [items for items, _ in await asyncio.gather(*(api.list(k, namespace, selector) for k in kinds))]
    by_part = {
        part: [
            pod
            for pod in pods
            if pod["metadata"]["labels"].get(names.PART_LABEL) == part and names.is_made_for(name, part, pod)
        ]
        for part in names.PARTS
    }
    return World(pool, {key_of(child): child for items in children for child in items}, by_part)


async def with_namesakes(api: Api, world: World, wanted: Sequence[Manifest]) -> World:
    """Add what has the name of a wanted object but not the pool's label: another's, or a child that lost it."""
    missing = [manifest for manifest in wanted if key_of(manifest) not in world.children]
    found = await asyncio.gather(
        *(api.get(kind_of(manifest), world.namespace, manifest["metadata"]["name"]) for manifest in missing)
    )
    return replace(world, children={**world.children, **{key_of(child): child for child in found if child is not None}})
