"""What is in the cluster of one pool: the pool, everything that bears its label, and its pods.

Read anew at each reconcile, so a decision is never older than the events that led to it. Secrets are never read.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pagoda_operator import names
from pagoda_operator.changes import Key, controller_uid, is_leaving, key_of
from pagoda_operator.compare import Manifest
from pagoda_operator.kube.api import Api
from pagoda_operator.kube.kinds import CHILDREN, POD, POOL, kind_of


@dataclass(frozen=True)
class World:
    """One pool and what belongs to it, or has the name of something that should."""

    pool: Manifest
    children: Mapping[Key, Manifest]
    pods: Mapping[str, Sequence[Manifest]]
    """By part."""

    @property
    def namespace(self) -> str:
        """Where all of it is."""
        return str(self.pool["metadata"]["namespace"])

    @property
    def name(self) -> str:
        """The pool's."""
        return str(self.pool["metadata"]["name"])

    @property
    def uid(self) -> str:
        """The pool's, by which its children are told."""
        return str(self.pool["metadata"]["uid"])

    @property
    def generation(self) -> int:
        """Of the pool's spec."""
        return int(self.pool["metadata"]["generation"])

    def own(self, kind: str, name: str) -> Manifest | None:
        """Return a child that is this pool's, None if there is none."""
        found = self.children.get((kind, name))
        return found if found is not None and controller_uid(found) == self.uid else None

    def with_child(self, child: Manifest) -> "World":
        """Return the world with `child` as it is now."""
        return replace(self, children={**self.children, key_of(child): child})


async def observe(api: Api, namespace: str, name: str) -> World | None:
    """Read all that bears the pool's label; None: the pool is gone, or on its way out."""
    pool = await api.get(POOL, namespace, name)
    if pool is None or is_leaving(pool):
        return None
    selector = f"{names.POOL_LABEL}={name}"
    kinds = (POD, *CHILDREN)
    pods, *children = [items for items, _ in await asyncio.gather(*(api.list(k, namespace, selector) for k in kinds))]
    by_part = {
        part: [pod for pod in pods if pod["metadata"]["labels"].get(names.PART_LABEL) == part] for part in names.PARTS
    }
    return World(pool, {key_of(child): child for items in children for child in items}, by_part)


async def with_namesakes(api: Api, world: World, wanted: Sequence[Manifest]) -> World:
    """Add what has the name of a wanted object but not the pool's label: another's, or a child that lost it."""
    missing = [manifest for manifest in wanted if key_of(manifest) not in world.children]
    found = await asyncio.gather(
        *(api.get(kind_of(manifest), world.namespace, manifest["metadata"]["name"]) for manifest in missing)
    )
    return replace(world, children={**world.children, **{key_of(child): child for child in found if child is not None}})
