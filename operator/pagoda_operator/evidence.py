"""All that a pool's conditions are told by, put together. Pure."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pagoda_operator import names
from pagoda_operator.changes import Key
from pagoda_operator.compare import Manifest
from pagoda_operator.intents import Intent, live_data
from pagoda_operator.kube.errors import FailedError
from pagoda_operator.pods import SIDECAR, Problem
from pagoda_operator.proofs import Report, Reports
from pagoda_operator.workloads import Workload, read_workload
from pagoda_operator.world import World
from pagoda_protocol.live import LIVE_FILE, LiveSettingsError, parse_live
from pagoda_protocol.marks import nodes_mark
from pagoda_protocol.pool.spec import InferencePool

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"
ReportOf = Callable[[str, str, str], Report | None]  # by namespace, name and uid of a pod


@dataclass(frozen=True)
class Condition:
    """One condition, without the times that the status adds."""

    type: str
    status: str
    reason: str
    message: str


@dataclass(frozen=True)
class Evidence:
    """All that the conditions are told by."""

    generation: int
    engine: Workload
    router: Workload
    memcached: Workload | None
    """None: the pool manages no memcached nodes."""
    reports: Reports
    live_generation: int | None
    """What engines have to follow; None: there are no live settings."""
    live_nodes: str | None = None
    """The mark of the memcached nodes that sidecars have to follow; None: there is no list that can be read."""
    without: frozenset[str] = frozenset()
    """The areas for which the spec asks for no tier."""
    is_valid: bool = True
    """The spec could be turned into children."""
    problems: tuple[Problem, ...] = ()
    """Of the spec and of the children's objects."""
    pending: tuple[str, ...] = ()
    """Why the children's objects are not all as wanted yet, where only time is needed."""
    waiting: str = ""
    """Why pods that serve are not yet replaced by those a new operator wants."""
    before: Mapping[str, Condition] = field(default_factory=dict)
    """The last conditions, where they are about this generation."""

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """All parts."""
        return (self.engine, self.router, *([self.memcached] if self.memcached else []))

    @property
    def is_complete(self) -> bool:
        """Whether all parts have the pods they are to have, and these answer."""
        return all(workload.is_complete for workload in self.workloads)


@dataclass(frozen=True)
class Outcome:
    """The world after all writes, and what they left undone."""

    world: World
    problems: tuple[Problem, ...] = ()
    """What a person has to see to."""
    pending: tuple[str, ...] = ()
    """What time sees to, a sentence each."""
    waiting: str = ""
    """What waits for its turn."""
    failure: FailedError | None = None
    """What the API server failed at, which is one of the problems."""


def gather(outcome: Outcome, intent: Intent, report_of: ReportOf, now: float) -> Evidence:
    """Read everything once more, now that all is written that could be; `now` is in seconds since 1970."""
    world = outcome.world
    engine = _workload(world, intent, names.ENGINE, "Deployment", now)
    reports = {pod.name: report_of(world.namespace, pod.name, pod.uid) for pod in engine.pods}
    return Evidence(
        generation=world.generation,
        engine=engine,
        router=_workload(world, intent, names.ROUTER, "Deployment", now),
        memcached=_nodes(world, intent, now),
        reports={name: report for name, report in reports.items() if report is not None},
        live_generation=live_generation(world),
        live_nodes=live_nodes(world),
        without=_areas_without_tiers(intent.pool),
        is_valid=intent.pool is not None,
        problems=outcome.problems,
        pending=outcome.pending,
        waiting=outcome.waiting,
        before=last_words(world.pool.get("status") or {}, world.generation),
    )


def live_generation(world: World) -> int | None:
    """Return which live settings engines have to follow, None while there are none that can be read."""
    try:
        return parse_live((live_data(world) or {}).get(LIVE_FILE, "")).generation
    except LiveSettingsError:
        return None


def live_nodes(world: World) -> str | None:
    """Return the mark of the memcached nodes that sidecars have to follow, None while there is no list of them."""
    try:
        nodes = json.loads((live_data(world) or {}).get(names.POOL_NODES_KEY, ""))["nodes"]
        return nodes_mark(node["name"] for node in nodes)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def last_words(status: Manifest, generation: int) -> Mapping[str, Condition]:
    """Return the conditions of a status that are about `generation`, by type."""
    return {
        entry["type"]: Condition(entry["type"], entry["status"], entry["reason"], entry["message"])
        for entry in status.get("conditions") or ()
        if entry.get("observedGeneration") == generation
    }


def _areas_without_tiers(pool: InferencePool | None) -> frozenset[str]:
    if pool is None:
        return frozenset()
    asked = {SIDECAR: pool.cache.ram_bytes, names.MEMCACHED: pool.cache.pool}  # without RAM there is no disk tier
    return frozenset(area for area, tiers in asked.items() if not tiers)


def _workload(world: World, intent: Intent, part: str, kind: str, now: float) -> Workload:
    key: Key = (kind, names.child_name(world.name, part))
    wanted = intent.child(key)
    desired = None if wanted is None else int(wanted["spec"]["replicas"])
    return read_workload(part, desired, world.own(*key), world.pods[part], now)


def _nodes(world: World, intent: Intent, now: float) -> Workload | None:
    key = ("StatefulSet", names.child_name(world.name, names.MEMCACHED))
    is_there = world.own(*key) is not None if intent.pool is None else intent.child(key) is not None
    return _workload(world, intent, names.MEMCACHED, "StatefulSet", now) if is_there else None
