"""What is in the cluster of one pool: the pool, everything that bears its label, and its pods. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pagoda_operator.changes import Key, controller_uid, key_of
from pagoda_operator.compare import Manifest


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
