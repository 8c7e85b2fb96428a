"""What has to be done so that the cluster holds what a pool wants: a pure plan.

An object is the pool's if its controller is the pool, by uid. Nothing else is ever written or deleted, whatever its
name or its labels. What cannot be changed in place is deleted, and made anew once it is gone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pagoda_operator.compare import Manifest, difference, stamp, template_mark

Key = tuple[str, str]  # kind and name: all children of a pool are in its namespace

NEVER = "1"
"""A version that no object has: etcd's first write makes 2. An apply of it makes what is not there and conflicts with
what somebody has made since it was missed; without a version it would take that over."""


@dataclass(frozen=True)
class Write:
    """Apply a manifest; it carries the version that was observed, or to make the object one that none ever had."""

    manifest: Manifest
    why: str
    """"missing", or the path of the first field that is not as wanted."""


@dataclass(frozen=True)
class Delete:
    """Delete an object of the pool as it was observed."""

    observed: Manifest
    why: str
    is_wanted: bool = False
    """It is made anew once it is gone."""
    keeps_pods: bool = False
    """Leave what the object made where it is, for its successor to adopt."""


Action = Write | Delete


@dataclass(frozen=True)
class Plan:
    """Actions in the order in which they are done, and what nothing can be done about now."""

    actions: tuple[Action, ...]
    clashes: tuple[str, ...] = ()
    """What has a wanted name and is somebody else's, a sentence each: a person has to act."""
    leaving: tuple[str, ...] = ()
    """What has a wanted name and is on its way out, a sentence each: it is made anew when it is gone."""


def plan(pool_uid: str, wanted: Sequence[Manifest], observed: Mapping[Key, Manifest]) -> Plan:
    """Compare what is wanted with what is there."""
    actions: list[Action] = []
    clashes: list[str] = []
    leaving: list[str] = []
    for manifest in wanted:
        found = observed.get(key_of(manifest))
        what = " ".join(key_of(manifest))
        if found is not None and controller_uid(found) != pool_uid:
            if _is_predecessors(manifest, found):
                leaving.append(f"{what} belongs to an earlier pool of this name, which is being deleted")
            else:
                clashes.append(f"{what} is not this pool's and is left alone; delete or rename it, or rename the pool")
        elif found is not None and is_leaving(found):
            leaving.append(f"{what} is being deleted")
        elif (action := _action(stamp(manifest), found)) is not None:
            actions.append(action)
    return Plan((*actions, *_orphans(pool_uid, wanted, observed)), tuple(clashes), tuple(leaving))


def rolls_pods(action: Action, observed: Mapping[Key, Manifest]) -> bool:
    """Whether an action puts pods of another template in the place of those that are there."""
    if not isinstance(action, Write) or "template" not in action.manifest.get("spec", {}):
        return False
    found = observed.get(key_of(action.manifest))
    return found is not None and template_mark(found) != template_mark(action.manifest)


def key_of(manifest: Manifest) -> Key:
    """Return what tells a child from a pool's other children."""
    return manifest["kind"], manifest["metadata"]["name"]


def controller_uid(manifest: Manifest) -> str | None:
    """Return the uid of the one owner that manages `manifest`, None if nobody does."""
    controller = _controller(manifest)
    return None if controller is None else controller["uid"]


def is_leaving(manifest: Manifest) -> bool:
    """Whether `manifest` has been deleted and is not gone yet."""
    return "deletionTimestamp" in manifest["metadata"]


def _action(wanted: Manifest, found: Manifest | None) -> Action | None:
    if found is None:
        return Write(_of_version(wanted, NEVER), "missing")
    if (fixed := _fixed_difference(wanted, found)) is not None:
        return Delete(found, f"{fixed} cannot be changed in place", is_wanted=True, keeps_pods=_adopts(wanted, found))
    if (path := difference(wanted, found)) is not None:
        return Write(_of_version(wanted, found["metadata"]["resourceVersion"]), path)
    return None


def _of_version(manifest: Manifest, version: str) -> Manifest:
    return {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": version}}


def _orphans(pool_uid: str, wanted: Sequence[Manifest], observed: Mapping[Key, Manifest]) -> tuple[Delete, ...]:
    keys = {key_of(manifest) for manifest in wanted}
    return tuple(
        Delete(found, "no longer wanted")
        for key, found in observed.items()
        if key not in keys and controller_uid(found) == pool_uid and not is_leaving(found)
    )


def _is_predecessors(wanted: Manifest, found: Manifest) -> bool:
    controller, former = _controller(wanted), _controller(found)
    return former is not None and controller is not None and _without_uid(former) == _without_uid(controller)


def _fixed_difference(wanted: Manifest, found: Manifest) -> str | None:
    """Return the path of a field that differs and that the API server lets nobody change."""
    mine, theirs = wanted.get("spec", {}), found.get("spec", {})
    match wanted["kind"]:
        case "Deployment":
            return _first_difference(mine, theirs, "selector")
        case "StatefulSet":
            is_other = _claims(mine) != _claims(theirs)
            fixed = _first_difference(mine, theirs, "selector", "serviceName", "podManagementPolicy")
            return fixed or ("spec.volumeClaimTemplates" if is_other else None)
        case "Service":
            is_other = (mine.get("clusterIP") == "None") != (theirs.get("clusterIP") == "None")
            return "spec.clusterIP" if is_other else None
        case "ConfigMap":
            is_other = found.get("immutable") is True and difference({"data": wanted["data"]}, found) is not None
            return "data of an immutable ConfigMap" if is_other else None
        case "RoleBinding":
            return "roleRef" if difference({"roleRef": wanted["roleRef"]}, found) is not None else None
    return None


def _first_difference(mine: Manifest, theirs: Manifest, *keys: str) -> str | None:
    changed = (key for key in keys if key in mine and difference({key: mine[key]}, theirs) is not None)
    return next((f"spec.{key}" for key in changed), None)


def _claims(spec: Manifest) -> list[str]:
    return [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates") or ()]


def _adopts(wanted: Manifest, found: Manifest) -> bool:
    """Whether pods of `found` match the selector of `wanted`; a cache's nodes are not worth keeping."""
    if wanted["kind"] != "Deployment":
        return False
    labels = found["spec"]["template"]["metadata"].get("labels") or {}
    selector: Mapping[str, str] = wanted["spec"]["selector"]["matchLabels"]
    return all(labels.get(key) == value for key, value in selector.items())


def _controller(manifest: Manifest) -> Mapping[str, str] | None:
    owners = manifest["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def _without_uid(owner: Mapping[str, str]) -> dict[str, str]:
    return {key: owner[key] for key in ("apiVersion", "kind", "name")}
