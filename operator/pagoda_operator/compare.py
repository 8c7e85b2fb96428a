"""Whether an object in the cluster is what we want it to be, and the marks that tell it from what we wanted before.

Server-side apply owns only the fields it names, so the question is whether the wanted manifest lies within the
observed object. What the API server does to a manifest is no difference: it fills in defaults, writes quantities in
another form and drops what is empty. Maps and lists that Kubernetes merges may hold what others added; those it
replaces as a whole may not.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pagoda_operator.names import APPLIED_ANNOTATION, GROUP
from pagoda_protocol.pool.quantities import QuantityError, parse_bytes, parse_millicores

Manifest = dict[str, Any]
Path = tuple[str, ...]

TEMPLATE_ANNOTATION = f"{GROUP}/template"
"""On each pod: the digest of the template it was made from, so that what it shows is told from what others show."""

_MERGE_KEYS = {
    "containers": ("name",), "initContainers": ("name",), "volumes": ("name",), "env": ("name",),
    "volumeMounts": ("mountPath",), "imagePullSecrets": ("name",), "ownerReferences": ("uid",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"), "ports": ("containerPort", "port", "protocol"),
}  # fmt: skip
_WHOLE = {
    "selector", "nodeSelector", "podSelector", "namespaceSelector", "labelSelector", "roleRef", "fieldRef",
    "configMapKeyRef", "secretKeyRef", "resourceFieldRef",
}  # fmt: skip
_QUANTITIES = {"limits", "requests", "sizeLimit"}
_DEFAULTS = {"protocol": "TCP", "apiVersion": "v1"}  # filled in also inside what is replaced as a whole
# Fields without a third state: the API server drops them at their zero.
_ZERO_IS_ABSENT = {
    "readOnly", "hostNetwork", "hostPID", "hostIPC", "publishNotReadyAddresses", "initialDelaySeconds",
    "minReadySeconds", "paused",
}  # fmt: skip


def stamp(wanted: Manifest) -> Manifest:
    """Return `wanted` with its marks: what it was applied with, and in a pod template what pods are made from."""
    stamped = _annotated(wanted, APPLIED_ANNOTATION, digest(wanted))
    template = wanted.get("spec", {}).get("template")
    if template is None:
        return stamped
    return {
        **stamped,
        "spec": {**wanted["spec"], "template": _annotated(template, TEMPLATE_ANNOTATION, digest(template))},
    }


def template_mark(workload: Mapping[str, Any]) -> str | None:
    """Return the mark of a workload's pod template, None if it has none."""
    template = workload.get("spec", {}).get("template", {})
    mark = (template.get("metadata", {}).get("annotations") or {}).get(TEMPLATE_ANNOTATION)
    return None if mark is None else str(mark)


def digest(manifest: Mapping[str, Any]) -> str:
    """Return 32 hex digits that stand for `manifest`."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def difference(wanted: Mapping[str, Any], observed: Mapping[str, Any]) -> str | None:
    """Return the path of the first field of `wanted` that `observed` does not have, None where it has them all."""
    found = _difference(wanted, observed, (), is_whole=False)
    return None if found is None else ".".join(found)


def _annotated(manifest: Mapping[str, Any], key: str, value: str) -> Manifest:
    metadata = manifest.get("metadata", {})
    return {**manifest, "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), key: value}}}


def _difference(wanted: Any, observed: Any, path: Path, *, is_whole: bool) -> Path | None:
    is_whole = is_whole or (path != () and path[-1] in _WHOLE)
    if isinstance(wanted, Mapping) and isinstance(observed, Mapping | None):
        return _map_difference(wanted, observed or {}, path, is_whole=is_whole)
    if isinstance(wanted, list | tuple) and isinstance(observed, list | None):
        return _list_difference(wanted, observed or [], path, is_whole=is_whole)
    return None if _is_same(wanted, observed, path) else path


def _map_difference(
    wanted: Mapping[str, Any], observed: Mapping[str, Any], path: Path, *, is_whole: bool
) -> Path | None:
    found = _first(
        _difference(value, observed.get(key), (*path, key), is_whole=is_whole) for key, value in wanted.items()
    )
    if found is None and is_whole:
        return _first(
            (*path, key) for key, value in observed.items() if key not in wanted and value != _DEFAULTS.get(key)
        )
    return found


def _list_difference(wanted: Sequence[Any], observed: Sequence[Any], path: Path, *, is_whole: bool) -> Path | None:
    merge_keys = None if is_whole else _MERGE_KEYS.get(path[-1])
    if merge_keys is None:
        if len(wanted) != len(observed):
            return path
        pairs = enumerate(zip(wanted, observed, strict=True))
        return _first(_difference(value, other, (*path, str(index)), is_whole=True) for index, (value, other) in pairs)
    by_key = {_identity(entry, merge_keys): entry for entry in observed}
    named = [(_identity(entry, merge_keys), entry) for entry in wanted]
    return _first(
        _difference(entry, by_key[key], (*path, key), is_whole=False) if key in by_key else (*path, key)
        for key, entry in named
    )


def _identity(entry: Mapping[str, Any], merge_keys: Sequence[str]) -> str:
    values = [entry.get(key, _DEFAULTS.get(key)) for key in merge_keys]
    return "/".join(str(value) for value in values if value is not None)


def _is_same(wanted: Any, observed: Any, path: Path) -> bool:
    if wanted == observed and isinstance(wanted, bool) == isinstance(observed, bool):
        return True
    if observed is None:
        return wanted in (None, "", [], {}) or (path[-1] in _ZERO_IS_ABSENT and not wanted)
    is_quantity = not _QUANTITIES.isdisjoint(path[-2:])
    return is_quantity and _is_same_quantity(wanted, observed, path[-1])


def _is_same_quantity(wanted: Any, observed: Any, key: str) -> bool:
    read = parse_millicores if key == "cpu" else parse_bytes
    try:
        return read(wanted) == read(observed)
    except QuantityError:
        return False


def _first(found: Iterable[Path | None]) -> Path | None:
    return next((path for path in found if path is not None), None)
