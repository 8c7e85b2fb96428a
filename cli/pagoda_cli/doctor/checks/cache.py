"""What pods say of their caches: whether they can share, which tiers are off, which pool nodes they miss."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pagoda_cli.doctor import names
from pagoda_cli.doctor.finding import CLUSTER, Finding, Place, one_line, place_of
from pagoda_cli.doctor.snapshot import Answer, Manifest, Manifests, Snapshot, name_of, namespace_of

_MAX_PODS = 3


def check_cache(snapshot: Snapshot) -> Iterable[Finding]:
    """Find skew between the pods of a pool, and tiers and nodes that are not used."""
    for pool in snapshot.pools:
        pods = snapshot.pods_of(pool, names.ENGINE)
        yield from _skew(snapshot, pool, pods)
        yield from _tiers(snapshot, pods)
        yield from _nodes(snapshot, pool, pods)
    if snapshot.num_not_asked:
        yield Finding("PGD058", CLUSTER, f"{snapshot.num_not_asked} pods")


def _skew(snapshot: Snapshot, pool: Manifest, pods: Manifests) -> Iterable[Finding]:
    for code, value_of in (
        ("PGD050", _from_summary(snapshot, "namespace")),
        ("PGD051", _from_arguments("--block-tokens")),
        ("PGD052", _from_summary(snapshot, "protocol")),
        ("PGD053", _from_arguments("--codec")),
    ):
        by_value: dict[str, list[str]] = {}
        for pod in pods:
            if (value := value_of(pod)) is not None:
                by_value.setdefault(value, []).append(name_of(pod))
        if len(by_value) > 1:
            groups = (f"{value[:16]}: {_some(holders)}" for value, holders in sorted(by_value.items()))
            yield Finding(code, place_of(pool), "; ".join(groups))


def _from_summary(snapshot: Snapshot, key: str) -> Callable[[Manifest], str | None]:
    def value_of(pod: Manifest) -> str | None:
        value = (_summary(snapshot, pod) or {}).get(key)
        return None if value is None else one_line(value)

    return value_of


def _from_arguments(flag: str) -> Callable[[Manifest], str | None]:
    def value_of(pod: Manifest) -> str | None:
        """Read `--flag VALUE` and `--flag=VALUE`."""
        engines = [container for container in pod["spec"]["containers"] if container["name"] == names.ENGINE]
        words = [str(word) for engine in engines for key in ("command", "args") for word in engine.get(key) or ()]
        for index, word in enumerate(words):
            if word == flag and index + 1 < len(words):
                return words[index + 1]
            if word.startswith(f"{flag}="):
                return word.partition("=")[2]
        return None

    return value_of


def _tiers(snapshot: Snapshot, pods: Manifests) -> Iterable[Finding]:
    for pod in pods:
        answer = snapshot.answers.get((namespace_of(pod), name_of(pod)))
        if answer is None:
            continue
        if answer.summary is None:
            yield Finding("PGD056", place_of(pod), f"sidecar: {one_line(answer.summary_reason)}")
        if answer.ready is None:
            yield Finding("PGD056", place_of(pod), f"engine: {one_line(answer.ready_reason)}")
        for tier, said in _mapping(answer.summary or {}, "tiers").items():
            if isinstance(said, Mapping) and said.get("state") == "off":
                yield Finding("PGD054", place_of(pod), f"{one_line(tier)}: {one_line(said.get('reason'))}")
        yield from _proofs(pod, answer)


def _proofs(pod: Manifest, answer: Answer) -> Iterable[Finding]:
    proof = _mapping(answer.ready or {}, "proof")
    for tier, result in _mapping(proof, "tiers").items():
        if result not in ("ok", "none"):
            yield Finding("PGD057", place_of(pod), f"{one_line(tier)}: {one_line(result)}")


def _nodes(snapshot: Snapshot, pool: Manifest, pods: Manifests) -> Iterable[Finding]:
    """Tell of each node once, with the pods that miss it."""
    missed: dict[str, list[tuple[str, str]]] = {}
    for pod in pods:
        tiers = _mapping(_summary(snapshot, pod) or {}, "tiers")
        for node, said in _mapping(_mapping(tiers, "pool"), "nodes").items():
            if isinstance(said, Mapping) and said.get("state") == "down":
                missed.setdefault(one_line(node), []).append((name_of(pod), one_line(said.get("reason"))))
    for node, sayings in missed.items():
        seen = f"{len(sayings)} of {len(pods)} pods miss it ({_some([pod for pod, _ in sayings])}): {sayings[0][1]}"
        yield Finding("PGD055", Place("pool node", node, namespace_of(pool)), seen)


def _summary(snapshot: Snapshot, pod: Manifest) -> Mapping[str, Any] | None:
    answer = snapshot.answers.get((namespace_of(pod), name_of(pod)))
    return None if answer is None else answer.summary


def _mapping(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a member that should be an object; a pod may say anything."""
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}


def _some(pods: list[str]) -> str:
    rest = f" and {len(pods) - _MAX_PODS} more" if len(pods) > _MAX_PODS else ""
    return ", ".join(sorted(pods)[:_MAX_PODS]) + rest
