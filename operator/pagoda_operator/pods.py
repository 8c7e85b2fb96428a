"""What a pod's own status says: whether it answers, of which template it is, and what is wrong with it. Pure.

Texts say what a person can do, and say the same from one crash to the next: a text that counts or tells the time
would be written again and again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pagoda_operator.compare import TEMPLATE_ANNOTATION, Manifest
from pagoda_operator.names import ENGINE, MEMCACHED, ROUTER
from pagoda_protocol.kubelet import NOT_MADE, NOT_PULLED
from pagoda_protocol.log_lines import last_words

SPEC, SIDECAR = "spec", "sidecar"  # areas of problems beside the parts

_MAX_QUOTE = 400
_MAX_EXIT_STATUS = 128  # above it is 128 + the number of a signal
_PREPARING_SECONDS = 120.0  # a volume of a cloud may take a minute to come to its node


@dataclass(frozen=True)
class Problem:
    """Something that a person should know."""

    area: str
    """What suffers: spec, engine (requests), sidecar (the tiers of a pod), memcached (the pool), router."""
    reason: str
    """CamelCase, as in a condition."""
    text: str
    """What is wrong and what to do, without the pod's name."""
    pod: str | None = None
    said: str = ""
    """What the pod's own log says about it."""


@dataclass(frozen=True)
class Pod:
    """One pod that is neither finished nor on its way out."""

    name: str
    uid: str
    template: str | None
    """The mark of the template it was made from."""
    is_ready: bool
    """Its main container is ready."""
    problems: tuple[Problem, ...]


def read_pod(part: str, manifest: Manifest, now: float) -> Pod | None:
    """Read a pod of `part` as it is `now`, in seconds since 1970; None: it does not count any more."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    if "deletionTimestamp" in metadata or status.get("phase") in ("Failed", "Succeeded"):
        return None
    containers = {entry["name"]: entry for entry in _container_statuses(status)}
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        template=(metadata.get("annotations") or {}).get(TEMPLATE_ANNOTATION),
        is_ready=bool(containers.get(part, {}).get("ready")),
        problems=tuple(_problems(part, manifest, status, containers, now)),
    )


def tell(problems: Sequence[Problem]) -> str:
    """Write problems as one message; the same one of several pods is told once, with the first one's words."""
    alike: dict[str, list[Problem]] = {}
    for problem in problems:
        alike.setdefault(problem.text, []).append(problem)
    return "; ".join(_told(text, sorted(same, key=lambda each: each.pod or "")) for text, same in alike.items())


def _told(text: str, alike: Sequence[Problem]) -> str:
    pods = [problem.pod for problem in alike if problem.pod]
    said = next((problem.said for problem in alike if problem.said), "")
    return (f"{_names(pods)}: " if pods else "") + text + (f", which ends: {said}" if said else "")


def _names(names: Sequence[str]) -> str:
    first, *others = names
    return f"{first} and {len(others)} more" if others else first


def _container_statuses(status: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _problems(
    part: str, manifest: Manifest, status: Mapping[str, Any], containers: Mapping[str, Mapping[str, Any]], now: float
) -> Iterable[Problem]:
    pod, pull_advice = manifest["metadata"]["name"], _pull_advice(manifest)
    if (message := _unschedulable(status)) is not None:
        yield Problem(part, "Unschedulable", f"{message}; {_scheduling_advice(part, message)}", pod)
    if _is_unprepared(status, now):
        yield Problem(part, "VolumesNotReady", f"its volumes or its network are not ready{_mounts(manifest)}", pod)
    for name, container in containers.items():
        if (found := _container_problem(name, container, pull_advice)) is not None:
            said = _said(container) if found[0] == "CrashLoopBackOff" else ""
            yield Problem(SIDECAR if name == SIDECAR else part, *found, pod, said)
        elif name == SIDECAR and not container.get("ready") and containers.get(part, {}).get("ready"):
            yield Problem(
                SIDECAR, "SidecarNotReady", "container sidecar is not ready: its pod serves without tiers", pod
            )


def _unschedulable(status: Mapping[str, Any]) -> str | None:
    if status.get("phase") != "Pending":
        return None
    for condition in status.get("conditions") or ():
        is_other = condition.get("type") != "PodScheduled" or condition.get("status") != "False"
        if not is_other and condition.get("reason") == "Unschedulable":
            return quote(condition.get("message") or "no node can take it")
    return None


def _is_unprepared(status: Mapping[str, Any], now: float) -> bool:
    """Whether a pod has had a node for long and its containers still cannot be begun.

    Why is told by events alone: a volume of a Secret that is not there leaves no other trace.
    """
    conditions = {entry.get("type"): entry for entry in status.get("conditions") or ()}
    scheduled, prepared = (conditions.get(kind, {}) for kind in ("PodScheduled", "PodReadyToStartContainers"))
    if status.get("phase") != "Pending" or scheduled.get("status") != "True" or prepared.get("status") != "False":
        return False
    try:
        since = datetime.fromisoformat(scheduled["lastTransitionTime"]).timestamp()
    except (KeyError, ValueError):
        return False
    return now - since >= _PREPARING_SECONDS


def _mounts(manifest: Manifest) -> str:
    mounted = ", ".join(sorted(set(_mounted(manifest))))
    see = f" (see that these are there: {mounted})" if mounted else ""
    return f", two minutes after it got a node{see}; kubectl describe pod tells what its node waits for"


def _mounted(manifest: Manifest) -> Iterator[str]:
    for volume in (manifest.get("spec") or {}).get("volumes") or ():
        for source in (volume, *((volume.get("projected") or {}).get("sources") or ())):
            if (secret := source.get("secret")) and not secret.get("optional"):
                yield f"Secret {secret.get('secretName') or secret.get('name')}"
            if (entries := source.get("configMap")) and not entries.get("optional"):
                yield f"ConfigMap {entries.get('name')}"
        if claim := volume.get("persistentVolumeClaim"):
            yield f"PersistentVolumeClaim {claim.get('claimName')}"
        if "ephemeral" in volume:
            yield f"the claim of volume {volume['name']}"


def _container_problem(name: str, container: Mapping[str, Any], pull_advice: str) -> tuple[str, str] | None:
    """Return reason and text of what keeps a container from running for good."""
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason, message = waiting.get("reason", ""), quote(waiting.get("message") or "")
    if reason in NOT_PULLED:
        # The kubelet tells in turns of the failure and of its waiting, the latter with the former behind.
        cause = message.rpartition("ErrImagePull: ")[2]
        kept = reason if reason == "InvalidImageName" else "ImagePullBackOff"
        advice = f"check {_IMAGE_FIELDS.get(name, 'its image')}{pull_advice}"
        return kept, f"container {name}: {cause or 'its image cannot be pulled'}; {advice}"
    if reason in NOT_MADE:
        return reason, f"container {name} cannot be made: {message}"
    return _crash(name, container)


def _crash(name: str, container: Mapping[str, Any]) -> tuple[str, str] | None:
    """Tell of a container that ends again and again, be it waiting, trying or just gone."""
    former, last = (container.get("lastState") or {}).get("terminated"), _last_end(container)
    if container.get("ready") or not last or not (last.get("exitCode") or former):
        return None
    if last.get("reason") == "OOMKilled":
        return "OOMKilled", f"container {name} was killed for memory; {_MEMORY_ADVICE.get(name, 'raise its limit')}"
    if not last.get("exitCode"):
        text = f"container {name} was ended by a probe or a signal, last with exit code 0; {_ENDED_ADVICE}"
        return "CrashLoopBackOff", text
    what = f"container {name} crashed, last with exit code {last['exitCode']}"
    return "CrashLoopBackOff", f"{what}; see its log (kubectl logs -c {name} --previous)"


def _said(container: Mapping[str, Any]) -> str:
    """Return with which words a container crashed; one that a signal has ended had no time for any."""
    last = _last_end(container)
    if not 0 < last.get("exitCode", 0) <= _MAX_EXIT_STATUS:
        return ""
    return quote(last_words(last.get("message") or ""))


def _last_end(container: Mapping[str, Any]) -> Mapping[str, Any]:
    for when in ("state", "lastState"):
        if end := (container.get(when) or {}).get("terminated"):
            return dict(end)
    return {}


def quote(message: str) -> str:
    """Return somebody else's message as it may stand in one of ours: one line, not long, no full stop."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in message).split())
    return (line if len(line) <= _MAX_QUOTE else f"{line[: _MAX_QUOTE - 1]}…").rstrip(".")


def _pull_advice(manifest: Manifest) -> str:
    """Say what to look at beside an image's name; a pod keeps the pull secrets that it was made with."""
    references = (manifest.get("spec") or {}).get("imagePullSecrets") or ()
    if named := [entry["name"] for entry in references if entry.get("name")]:
        return f" and the Secrets that the pod pulls with: {', '.join(named)}"
    return (
        "; the pod pulls with no Secret: if its registry wants one, name it in the chart's images.pullSecrets, "
        "and delete the pod then"
    )


def _scheduling_advice(part: str, message: str) -> str:
    fields = [advice[part] for sign, advice in _SCHEDULING_FIELDS if sign in message and part in advice]
    return f"change {' or '.join(fields)}, or add nodes" if fields else "add nodes, or make room on them"


_SCHEDULING_FIELDS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("Insufficient nvidia.com/gpu", {ENGINE: 'spec.engine.resources.limits."nvidia.com/gpu"'}),
    (
        "Insufficient memory",
        {
            ENGINE: "spec.engine.resources.limits.memory or spec.cache.ram.size",
            MEMCACHED: "spec.cache.pool.managed.memoryPerReplica",
            ROUTER: "spec.routing.replicas",
        },
    ),
    (
        "Insufficient cpu",
        {
            ENGINE: "spec.engine.resources.limits.cpu",
            MEMCACHED: "spec.cache.pool.managed.replicas",
            ROUTER: "spec.routing.replicas",
        },
    ),
    ("Insufficient ephemeral-storage", {ENGINE: "spec.cache.disk.size"}),
    ("taint", {ENGINE: "spec.engine.podTemplate.tolerations"}),
    ("affinity/selector", {ENGINE: "spec.engine.podTemplate.nodeSelector or affinity"}),
    ("affinity rules", {ENGINE: "spec.engine.podTemplate.affinity"}),
    ("topology spread", {ENGINE: "spec.engine.podTemplate.topologySpreadConstraints"}),
    ("ersistent", {ENGINE: "spec.cache.disk.storageClassName or spec.engine.podTemplate.volumes"}),
)
_MEMORY_ADVICE = {
    ENGINE: "raise spec.engine.resources.limits.memory, or lower spec.engine.kvCache.memory or spec.engine.limits",
    SIDECAR: "its limit is derived from spec.cache.ram.size; lower that and report this",
    MEMCACHED: "its limit is derived from spec.cache.pool.managed.memoryPerReplica; lower that and report this",
    ROUTER: "its limit is derived; raise spec.routing.replicas and report this",
}
_ENDED_ADVICE = (
    "kubectl describe pod tells by what; an engine that needs longer to start wants a higher spec.engine.startupSeconds"
)
_IMAGE_FIELDS = {
    ENGINE: "spec.engine.image",
    SIDECAR: "the sidecar's image among the chart's values",
    MEMCACHED: "memcached's image among the chart's values",
    ROUTER: "the router's image among the chart's values",
}
