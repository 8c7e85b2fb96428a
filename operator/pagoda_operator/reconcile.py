"""One pool, from what is observed to what is wanted: observe, plan, apply, tell. Any trigger, the same function.

Every write rests on the version that was observed. When somebody else was first (409), nothing more is written: it is
looked at again at once. A child that the API server refuses, or fails at, keeps no other child from its place; the
pool's conditions quote what it said.
"""

import contextlib
import datetime
import logging
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

from pagoda_operator import names
from pagoda_operator.changes import Action, Delete, Plan, Write, key_of, plan, rolls_pods
from pagoda_operator.children import Images, PolicyPeers, render_secrets
from pagoda_operator.compare import Manifest
from pagoda_operator.events import transitions
from pagoda_operator.evidence import TRUE, Outcome, gather, live_generation, live_nodes
from pagoda_operator.intents import Intent, intend, owner_of
from pagoda_operator.kube.api import Api
from pagoda_operator.kube.errors import (
    ConflictError,
    FailedError,
    ForbiddenError,
    GoneError,
    KubeError,
    NotServedError,
    RefusedError,
)
from pagoda_operator.kube.kinds import POOL, SECRET, kind_of
from pagoda_operator.observe import observe, with_namesakes
from pagoda_operator.pods import SPEC, Problem, quote
from pagoda_operator.pool_gauges import PoolGauges
from pagoda_operator.proofs import Report
from pagoda_operator.status import make_status, timestamp
from pagoda_operator.turns import Turns
from pagoda_operator.world import World
from pagoda_protocol.pool.spec import InferencePool
from pagoda_runtime.logs import fields

_log = logging.getLogger(__name__)

CONFLICT_SECONDS = 0.2
LEAVING_SECONDS = 1.0
UNREADY_SECONDS = 60.0
TURN_SECONDS = 30.0
# Secrets cannot be looked at, so they are sent again now and then, and more often where a pool is not ready: one of
# them may be what is missing.
SECRETS_SECONDS, UNREADY_SECRETS_SECONDS = 1800.0, 120.0
UNWRITTEN = "Child"  # what the reasons of children that could not be written begin with


class Fleet(Protocol):
    """What pods say of themselves."""

    def report(self, namespace: str, pod_name: str, pod_uid: str) -> Report | None:
        """Return a pod's newest words, None if it has not been asked yet."""

    def expect(self, namespace: str, pool: str, generation: int, nodes: str | None) -> None:
        """Ask a pool's pods often until they follow live settings of `generation` and memcached's `nodes`, a mark."""


class Reconciler:
    """Brings pools about, one at a time each; `clock` tells seconds since 1970."""

    def __init__(
        self,
        api: Api,
        images: Images,
        peers: PolicyPeers,
        fleet: Fleet,
        gauges: PoolGauges,
        clock: Callable[[], float] = time.time,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._api = api
        self._images = images
        self._peers = peers
        self._fleet = fleet
        self._gauges = gauges
        self._turns = Turns()
        self._clock = clock
        self._random_bytes = random_bytes
        self._secrets_sent: dict[tuple[str, str], tuple[str, float]] = {}  # by pool: its uid, and when

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """Do all that can be done now; return after how many seconds to look again, None: when something happens.

        Raises:
            FailedError: the API server failed at a child; all else is done, and told.
            KubeError: the API server cannot be reached or read; nothing is known, so nothing was told.
        """
        world = await observe(self._api, namespace, name)
        if world is None:
            self._forget(namespace, name)
            return None
        intent = intend(world, self._images, self._peers)
        try:
            outcome = await self._bring_about(world, intent)
            is_settled = await self._tell(outcome, intent)
        except ConflictError as error:
            _log.debug("somebody else was first %s", fields(namespace=namespace, pool=name, error=error))
            return CONFLICT_SECONDS
        except GoneError as error:
            _log.debug("something went meanwhile %s", fields(namespace=namespace, pool=name, error=error))
            return LEAVING_SECONDS
        if is_settled:
            self._turns.leave((namespace, name))
        if outcome.failure is not None:
            raise outcome.failure  # to be tried again soon, and less and less often
        if outcome.pending:
            return LEAVING_SECONDS
        if outcome.waiting:
            return TURN_SECONDS
        return None if is_settled else UNREADY_SECONDS

    async def _bring_about(self, world: World, intent: Intent) -> Outcome:
        if intent.pool is None:
            return Outcome(world, intent.problems)
        refusals: list[KubeError] = []
        with _noting(refusals, world):
            await self._send_secrets(world, intent.pool)
        world = await with_namesakes(self._api, world, intent.children)
        todo, waiting = self._in_turn(world, plan(world.uid, intent.children, world.children))
        for action in todo.actions:
            with _noting(refusals, world):
                world = await self._do(world, action)
        problems = (
            *(Problem(SPEC, "NameClash", text) for text in todo.clashes),
            *(Problem(SPEC, f"{UNWRITTEN}{error.code}", quote(str(error))) for error in refusals),
        )
        failure = next((error for error in refusals if isinstance(error, FailedError)), None)
        return Outcome(world, problems, (*todo.leaving, *_replaced(todo)), waiting, failure)

    def _in_turn(self, world: World, todo: Plan) -> tuple[Plan, str]:
        """Leave out what only a new operator wants and replaces pods that serve, while another pool has the turn."""
        rolling = [action for action in todo.actions if rolls_pods(action, world.children)]
        status = world.pool.get("status") or {}
        is_asked_for = status.get("observedGeneration") != world.generation
        if not rolling or is_asked_for or not _serves(status) or self._turns.take((world.namespace, world.name)):
            return todo, ""
        holder = "/".join(self._turns.holder or ())
        rest = tuple(action for action in todo.actions if action not in rolling)
        return replace(
            todo, actions=rest
        ), f"the operator wants other pods; they are made once pool {holder} is complete"

    async def _send_secrets(self, world: World, pool: InferencePool) -> None:
        key, now = (world.namespace, world.name), self._clock()
        uid, sent = self._secrets_sent.get(key, ("", 0.0))
        is_ready = _is_ready(world.pool.get("status") or {})
        if uid == world.uid and now - sent < (SECRETS_SECONDS if is_ready else UNREADY_SECRETS_SECONDS):
            return
        for secret in render_secrets(pool, owner_of(world), self._random_bytes):
            await self._api.create(SECRET, secret)
        self._secrets_sent[key] = (world.uid, now)

    async def _do(self, world: World, action: Action) -> World:
        target = action.manifest if isinstance(action, Write) else action.observed
        kind, metadata = kind_of(target), target["metadata"]
        about = fields(
            namespace=world.namespace, pool=world.name, child=f"{kind.kind}/{metadata['name']}", why=action.why
        )
        if isinstance(action, Write):
            applied = await self._api.apply(kind, action.manifest, manager=names.MANAGER)
            _log.info("applied a child %s", about)
            return world.with_child(applied)
        await self._api.delete(
            kind, world.namespace, metadata["name"], uid=metadata["uid"], resource_version=metadata["resourceVersion"],
            propagation="Orphan" if action.keeps_pods else "Background",
        )  # fmt: skip
        _log.info("deleted a child %s", about)
        return world

    async def _tell(self, outcome: Outcome, intent: Intent) -> bool:
        """Write the status if it says something new, and events for what has turned.

        Return whether the pool is ready and complete: it also serves while its memcached nodes start, empty.
        """
        world = outcome.world
        before = world.pool.get("status") or {}
        model = intent.pool.model.name if intent.pool is not None else None
        now = self._clock()
        evidence = gather(outcome, intent, self._seen_by(world).report, now)
        told_at = timestamp(datetime.datetime.fromtimestamp(now, datetime.UTC))
        status = make_status(world.name, model, evidence, before, told_at)
        if status != _without_others(before, status):
            metadata = {key: world.pool["metadata"][key] for key in ("namespace", "name", "resourceVersion")}
            manifest = {"apiVersion": POOL.api_version, "kind": POOL.kind, "metadata": metadata, "status": status}
            await self._api.apply(POOL, manifest, manager=names.STATUS_MANAGER, subresource="status")
            await self._announce(world, before, status)
        self._gauges.show(world.namespace, world.name, status["conditions"])
        return _is_ready(status) and evidence.is_complete

    async def _announce(self, world: World, before: Manifest, status: Manifest) -> None:
        for turn in transitions(before, status):
            about = fields(namespace=world.namespace, pool=world.name, reason=turn.reason, message=turn.note)
            _log.info("%s %s", turn.action, about)
            try:
                await self._api.event(
                    world.pool, warning=turn.is_warning, reason=turn.reason, action=turn.action, note=turn.note
                )
            except KubeError as error:  # the status has said it; an event is worth no second reconcile
                _log.warning("an event could not be posted %s error=%s", about, error)

    def _forget(self, namespace: str, name: str) -> None:
        self._gauges.forget(namespace, name)
        self._turns.leave((namespace, name))
        self._secrets_sent.pop((namespace, name), None)

    def _seen_by(self, world: World) -> Fleet:
        """Return the fleet, told what the pool's pods have to follow."""
        if (generation := live_generation(world)) is not None:
            self._fleet.expect(world.namespace, world.name, generation, live_nodes(world))
        return self._fleet


@contextlib.contextmanager
def _noting(refusals: list[KubeError], world: World) -> Iterator[None]:
    """Note that a child is refused, and go on."""
    try:
        yield
    except (RefusedError, ForbiddenError, NotServedError, FailedError) as error:
        _log.warning("a child was refused %s", fields(namespace=world.namespace, pool=world.name, error=error))
        refusals.append(error)


def _replaced(todo: Plan) -> tuple[str, ...]:
    """Say which objects are deleted to be made anew."""
    gone = [action for action in todo.actions if isinstance(action, Delete) and action.is_wanted]
    return tuple(f"{' '.join(key_of(action.observed))} is made anew: {action.why}" for action in gone)


def _without_others(before: Manifest, status: Manifest) -> Manifest:
    """Leave out conditions of types that others have written beside ours."""
    ours = {entry["type"] for entry in status["conditions"]}
    kept = [entry for entry in before.get("conditions") or () if entry["type"] in ours]
    return {**before, "conditions": kept}


def _is_ready(status: Manifest) -> bool:
    return any(entry["type"] == "Ready" and entry["status"] == TRUE for entry in status.get("conditions") or ())


def _serves(status: Manifest) -> bool:
    """Whether new pods can make things worse: it is ready, or may be but for a child that could not be written."""
    ready = (entry for entry in status.get("conditions") or () if entry["type"] == "Ready")
    return any(entry["status"] == TRUE or entry["reason"].startswith(UNWRITTEN) for entry in ready)
