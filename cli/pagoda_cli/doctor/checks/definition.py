"""The CustomResourceDefinition: there, served, and the one of this release."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any

from pagoda_cli.doctor import names
from pagoda_cli.doctor.finding import CLUSTER, Finding, place_of
from pagoda_cli.doctor.snapshot import Manifest, Snapshot, condition

SCHEMA_FILE = "schema.json"
_MAX_FIELDS = 5


def check_definition(snapshot: Snapshot) -> Iterable[Finding]:
    """Find what is wrong with the kind itself."""
    if snapshot.crd is None:
        if snapshot.is_crd_known:
            yield Finding("PGD001", CLUSTER, f"there is no {names.CRD}")
    else:
        yield from _served(snapshot.crd)
        yield from _schema(snapshot.crd)
    if snapshot.other_crd is not None:
        yield Finding("PGD004", place_of(snapshot.other_crd), "the Gateway API Inference Extension is installed")


def _served(crd: Manifest) -> Iterable[Finding]:
    versions = {version["name"]: version for version in crd["spec"]["versions"]}
    ours = versions.get(names.VERSION)
    if ours is None or not ours["served"]:
        served = ", ".join(name for name, version in versions.items() if version["served"]) or "none"
        yield Finding("PGD002", place_of(crd), f"{names.VERSION} is not served; served: {served}")
    for kind in ("Established", "NamesAccepted"):
        if (now := condition(crd, kind)) and now.get("status") != "True":
            yield Finding("PGD002", place_of(crd), f"{kind} is {now.get('status')}: {now.get('message', '')}")
    unknown = set((crd.get("status") or {}).get("storedVersions") or ()) - set(versions)
    if unknown:
        seen = f"pools are stored as {', '.join(sorted(unknown))}, which the definition no longer has"
        yield Finding("PGD002", place_of(crd), seen)


def _schema(crd: Manifest) -> Iterable[Finding]:
    version = next((version for version in crd["spec"]["versions"] if version["name"] == names.VERSION), None)
    if version is None:
        return
    known, found = shipped_schema(), describe_schema(version["schema"]["openAPIV3Schema"])
    if found == known:
        return
    missing, more = set(known["fields"]) - set(found["fields"]), set(found["fields"]) - set(known["fields"])
    parts = [f"fields missing: {_some(missing)}"] if missing else []
    parts += [f"fields that this release does not know: {_some(more)}"] if more else []
    what = "; ".join(parts) or "it has the same fields with other bounds, defaults, rules or descriptions"
    yield Finding("PGD003", place_of(crd), f"{what}{_writers(crd)}")


def describe_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema's fields, by path, and a digest of all of it."""
    text = json.dumps(schema, sort_keys=True, separators=(",", ":"))
    return {"digest": hashlib.sha256(text.encode()).hexdigest(), "fields": sorted(_fields(schema, ""))}


def shipped_schema() -> dict[str, Any]:
    """Return the same of the definition that this release ships."""
    text = resources.files("pagoda_cli.doctor").joinpath(SCHEMA_FILE).read_text("utf-8")
    shipped: dict[str, Any] = json.loads(text)
    return shipped


def _fields(schema: Mapping[str, Any], path: str) -> Iterable[str]:
    for name, inner in (schema.get("properties") or {}).items():
        below = f"{path}.{name}" if path else name
        yield below
        yield from _fields(inner, below)
    if isinstance(items := schema.get("items"), Mapping):
        yield from _fields(items, f"{path}[]")


def _some(fields: set[str]) -> str:
    listed = sorted(fields)
    rest = f" and {len(listed) - _MAX_FIELDS} more" if len(listed) > _MAX_FIELDS else ""
    return ", ".join(listed[:_MAX_FIELDS]) + rest


def _writers(crd: Manifest) -> str:
    """Say who wrote the spec last, for a hint at who edited it; times have whole seconds, so there may be several."""
    entries = crd["metadata"].get("managedFields") or ()
    writers = [entry for entry in entries if "f:spec" in (entry.get("fieldsV1") or {})]
    if not writers:
        return ""
    time = max(str(entry.get("time", "")) for entry in writers)
    last = sorted({str(entry.get("manager")) for entry in writers if str(entry.get("time", "")) == time})
    return f"; last written by {' or '.join(last)} at {time}"
