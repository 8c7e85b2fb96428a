"""What a pool's spec comes to: the children it wants, or why it can have none. Pure."""

from dataclasses import dataclass

from pagoda_operator import names
from pagoda_operator.changes import Key, key_of
from pagoda_operator.children import Images, Owner, PolicyPeers, Seen, render
from pagoda_operator.compare import Manifest
from pagoda_operator.pods import SPEC, Problem, quote
from pagoda_operator.world import World
from pagoda_protocol.pool.spec import InferencePool, SpecError, parse_pool


@dataclass(frozen=True)
class Intent:
    """What is wanted in the cluster."""

    pool: InferencePool | None
    """None: the spec cannot be turned into children, `problems` says why, and what is there stays as it is."""
    children: tuple[Manifest, ...] = ()
    problems: tuple[Problem, ...] = ()

    def child(self, key: Key) -> Manifest | None:
        """Return a wanted child, None if it is not wanted."""
        return next((child for child in self.children if key_of(child) == key), None)


def intend(world: World, images: Images, peers: PolicyPeers) -> Intent:
    """Read the pool's spec and turn it into children."""
    try:
        pool = parse_pool(world.pool)
        seen = Seen(live=live_data(world), policy=peers)
        return Intent(pool, render(pool, owner_of(world), images, seen))
    except SpecError as error:
        return _refused(*error.errors)


def owner_of(world: World) -> Owner:
    """Return the pool as its children's owner."""
    return Owner(world.namespace, world.name, world.uid, world.generation)


def live_data(world: World) -> dict[str, str] | None:
    """Return the live settings as they are in the cluster."""
    config_map = world.own("ConfigMap", names.live_name(world.name))
    return None if config_map is None else config_map.get("data") or {}


def _refused(*errors: str) -> Intent:
    return Intent(None, problems=tuple(Problem(SPEC, "InvalidSpec", quote(error)) for error in errors))
