"""Pods that do not run, in the words of scheduler, nodes and API server."""

from collections.abc import Iterable

from pagoda_cli.doctor import names
from pagoda_cli.doctor.finding import Finding, one_line, place_of
from pagoda_cli.doctor.snapshot import (
    Manifest,
    Snapshot,
    age_seconds,
    condition,
    labels_of,
    name_of,
    namespace_of,
)
from pagoda_protocol.kubelet import NOT_MADE, NOT_PULLED
from pagoda_protocol.log_lines import last_words

_START_SECONDS = 120.0


def check_pods(snapshot: Snapshot) -> Iterable[Finding]:
    """Find pods of pools and operators that do not run, and those that were never made."""
    for pod in (*(snapshot.pods or ()), *snapshot.operator_pods):
        if not pod["metadata"].get("deletionTimestamp"):
            yield from _pod(snapshot, pod)
    for workload in (*(snapshot.deployments or ()), *(snapshot.stateful_sets or ())):
        if names.POOL_LABEL in labels_of(workload):
            yield from _refused(snapshot, workload)


def _pod(snapshot: Snapshot, pod: Manifest) -> Iterable[Finding]:
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False" and not _containers(pod):
        yield Finding("PGD040", place_of(pod), f"{scheduled.get('reason')}: {scheduled.get('message')}")
        return
    found = [finding for status in _containers(pod) for finding in _container(pod, status)]
    yield from found
    started = age_seconds(snapshot, scheduled.get("lastTransitionTime"))
    is_late = (pod.get("status") or {}).get("phase") == "Pending" and started > _START_SECONDS
    if is_late and not found:
        yield Finding("PGD046", place_of(pod), f"for {started:.0f} s; {_newest_warning(snapshot, pod)}")


def _containers(pod: Manifest) -> list[Manifest]:
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _container(pod: Manifest, status: Manifest) -> Iterable[Finding]:
    waiting = (status.get("state") or {}).get("waiting") or {}
    ended = (status.get("lastState") or {}).get("terminated") or {}
    reason = waiting.get("reason")
    text = one_line(f"{status['name']}: {reason}: {waiting.get('message', '')}".rstrip(": "))
    if reason in NOT_PULLED:
        yield Finding("PGD041", place_of(pod), text)
    elif reason in NOT_MADE:
        yield Finding("PGD043", place_of(pod), text)
    elif reason == "CrashLoopBackOff":
        end = f"{ended.get('reason', 'ended')}, exit code {ended.get('exitCode')}"
        words = f": {one_line(said)}" if (said := last_words(ended.get("message") or "")) else ""
        yield Finding("PGD042", place_of(pod), f"{status['name']}: {status['restartCount']} restarts; {end}{words}")
    if ended.get("reason") == "OOMKilled":
        yield Finding("PGD045", place_of(pod), f"{status['name']}: at {ended.get('finishedAt')}")


def _refused(snapshot: Snapshot, workload: Manifest) -> Iterable[Finding]:
    failure = condition(workload, "ReplicaFailure")
    if failure.get("status") == "True":
        yield Finding("PGD044", place_of(workload), f"{failure.get('reason')}: {failure.get('message')}")
    elif workload["kind"] == "StatefulSet" and _lacks_pods(workload):
        failed = [event for event in _warnings(snapshot, workload) if event.get("reason") == "FailedCreate"]
        if failed:
            yield Finding("PGD044", place_of(workload), str(failed[-1].get("message")))


def _lacks_pods(workload: Manifest) -> bool:
    wanted: int = workload["spec"].get("replicas", 1)
    made: int = (workload.get("status") or {}).get("replicas", 0)
    return made < wanted


def _newest_warning(snapshot: Snapshot, pod: Manifest) -> str:
    about = _warnings(snapshot, pod)
    return f"{about[-1].get('reason')}: {about[-1].get('message')}" if about else "no warning was given"


def _warnings(snapshot: Snapshot, manifest: Manifest) -> list[Manifest]:
    """Return the warnings about an object, the newest last."""
    wanted = (manifest["kind"], namespace_of(manifest), name_of(manifest))
    about = [
        event
        for event in snapshot.warnings
        if (event["involvedObject"].get("kind"), namespace_of(event), event["involvedObject"].get("name")) == wanted
    ]
    return sorted(about, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
