"""What a pod's own status says: whether it answers, of which template it is, and what is wrong with it. Pure.

Texts say what a person can do, and say the same from one crash to the next: a text that counts or tells the time
would be written again and again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagoda_operator.compare import TEMPLATE_ANNOTATION, Manifest
from pagoda_operator.names import ENGINE, MEMCACHED, ROUTER
from pagoda_runtime.logs import last_words

SPEC, SIDECAR = "spec", "sidecar"  # areas of problems beside the parts

_MAX_QUOTE = 400


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


def read_pod(part: str, manifest: Manifest) -> Pod | None:
    """Read a pod of `part`; None: it does not count any more."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    if "deletionTimestamp" in metadata or status.get("phase") in ("Failed", "Succeeded"):
        return None
    containers = {entry["name"]: entry for entry in _container_statuses(status)}
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        template=(metadata.get("annotations") or {}).get(TEMPLATE_ANNOTATION),
        is_ready=bool(containers.get(part, {}).get("ready")),
        problems=tuple(_problems(part, manifest, status, containers)),
    )


def tell(problems: Sequence[Problem]) -> str:
    """Write problems as one message; the same one of several pods is told once."""
    pods: dict[str, list[str]] = {}
    for problem in problems:
        pods.setdefault(problem.text, []).extend([problem.pod] if problem.pod else [])
    return "; ".join(f"{_names(names)}: {text}" if names else text for text, names in pods.items())


def _names(names: Sequence[str]) -> str:
    first, *others = sorted(names)
    return f"{first} and {len(others)} more" if others else first


def _container_statuses(status: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _problems(
    part: str, manifest: Manifest, status: Mapping[str, Any], containers: Mapping[str, Mapping[str, Any]]
) -> Iterable[Problem]:
    pod, pull_advice = manifest["metadata"]["name"], _pull_advice(manifest)
    if (message := _unschedulable(status)) is not None:
        yield Problem(part, "Unschedulable", f"{message}; {_scheduling_advice(part, message)}", pod)
    for name, container in containers.items():
        if (found := _container_problem(name, container, pull_advice)) is not None:
            yield Problem(SIDECAR if name == SIDECAR else part, *found, pod)
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


def _container_problem(name: str, container: Mapping[str, Any], pull_advice: str) -> tuple[str, str] | None:
    """Return reason and text of what keeps a container from running for good."""
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason, message = waiting.get("reason", ""), quote(waiting.get("message") or "")
    if reason in ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"):
        # The kubelet tells in turns of the failure and of its waiting, the latter with the former behind.
        cause = message.rpartition("ErrImagePull: ")[2]
        kept = reason if reason == "InvalidImageName" else "ImagePullBackOff"
        advice = f"check {_IMAGE_FIELDS.get(name, 'its image')}{pull_advice}"
        return kept, f"container {name}: {cause or 'its image cannot be pulled'}; {advice}"
    if reason in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"):
        return reason, f"container {name} cannot be made: {message}"
    return _crash(name, container)


def _crash(name: str, container: Mapping[str, Any]) -> tuple[str, str] | None:
    """Tell of a container that crashes again and again, be it waiting, trying or just gone."""
    last = (container.get("state") or {}).get("terminated") or (container.get("lastState") or {}).get("terminated")
    if container.get("ready") or not last or not last.get("exitCode"):
        return None
    if last.get("reason") == "OOMKilled":
        return "OOMKilled", f"container {name} was killed for memory; {_MEMORY_ADVICE.get(name, 'raise its limit')}"
    said = f": {words}" if (words := quote(last_words(last.get("message") or ""))) else ""
    what = f"container {name} crashed, last with exit code {last['exitCode']}{said}"
    return "CrashLoopBackOff", f"{what}; see its log (kubectl logs -c {name} --previous)"


def quote(message: str) -> str:
    """Return somebody else's message as it may stand in one of ours: one line, not long, no full stop."""
    line = " ".join(message.split())
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
_IMAGE_FIELDS = {
    ENGINE: "spec.engine.image",
    SIDECAR: "the sidecar's image among the chart's values",
    MEMCACHED: "memcached's image among the chart's values",
    ROUTER: "the router's image among the chart's values",
}
