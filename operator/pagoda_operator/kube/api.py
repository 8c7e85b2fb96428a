"""What the operator does at the API server, typed: plain manifests in and out, and one error tree.

Every call is one request with a deadline and no retry of its own: whoever calls observes anew and decides anew. Writes
to an object that exists carry the version it was decided on; the API server refuses them when somebody came first.
"""

import datetime
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pagoda_operator.kube.errors import GoneError, KubeError, error_of
from pagoda_operator.kube.glance import identity
from pagoda_operator.kube.kinds import EVENT, Kind, Manifest, micro_time
from pagoda_operator.kube.transport import Answer, Request, Transport

Counted = Callable[[str, str, str], None]

_PAGE = "500"
_APPLY = "application/apply-patch+yaml"  # JSON is YAML
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_MAX_NOTE = 1024  # bytes
_CONTROLLER = "pagoda-kv.io/operator"


class Api:
    """The API server, as `instance` (one process) sees it.

    `counted` hears of every call: verb, kind, and status code or "Unreachable".
    """

    def __init__(
        self, transport: Transport, instance: str = "pagoda-operator", counted: Counted = lambda *_: None
    ) -> None:
        self._transport = transport
        self._instance = instance
        self._counted = counted

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        """Return an object, None if there is none."""
        try:
            return await self._call("get", kind, Request("GET", kind.path(namespace, name)))
        except GoneError:
            return None

    async def list(self, kind: Kind, namespace: str | None, selector: str = "") -> tuple[list[Manifest], str]:
        """Return all objects of a namespace (None: of all), and the version of the whole.

        Raises:
            GoneError: the pages took so long that the next is of no use any more; begin again.
        """
        query = {"limit": _PAGE} | ({"labelSelector": selector} if selector else {})
        items: list[Manifest] = []
        while True:
            page = await self._call("list", kind, Request("GET", kind.path(namespace), query))
            named = {"apiVersion": kind.api_version, "kind": kind.kind}
            items += [named | item for item in page.get("items") or ()]
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return items, str(metadata.get("resourceVersion", ""))
            query["continue"] = metadata["continue"]

    async def apply(
        self,
        kind: Kind,
        manifest: Mapping[str, Any],
        *,
        manager: str,
        subresource: str = "",
        force: bool = True,
    ) -> Manifest:
        """Apply on the server's side and return what came of it.

        An object that is not there is made. With `metadata.resourceVersion` in the manifest nothing happens to one that
        is there unless it is of that version. Unknown fields are refused, never dropped.
        """
        return await self._call("apply", kind, _application(kind, manifest, manager, subresource, force))

    async def apply_for_version(self, kind: Kind, manifest: Mapping[str, Any], *, manager: str) -> str:
        """Apply likewise, and return only of which version the object is then."""
        request = replace(_application(kind, manifest, manager), accept=_METADATA)
        answer = await self._send("apply", kind, request)
        seen = identity(answer.body) if 200 <= answer.status < 300 else None
        return str(_checked(answer, request)["metadata"]["resourceVersion"]) if seen is None else seen[1]

    async def create(self, kind: Kind, manifest: Mapping[str, Any]) -> bool:
        """Make an object; False: one of that name is there already, whatever is in it."""
        path = kind.path(manifest["metadata"].get("namespace"))
        request = Request("POST", path, {"fieldValidation": "Strict"}, manifest)
        answer = await self._send("create", kind, request)
        if answer.status == 409 and answer.document.get("reason") == "AlreadyExists":
            return False
        _checked(answer, request)
        return True

    async def replace(self, kind: Kind, manifest: Mapping[str, Any]) -> Manifest:
        """Put a whole object in the place of the version it was read as.

        Raises:
            ConflictError: it is of another version by now.
        """
        metadata = manifest["metadata"]
        assert metadata.get("resourceVersion"), "a replacement without the version it replaces"
        path = kind.path(metadata.get("namespace"), metadata["name"])
        return await self._call("replace", kind, Request("PUT", path, {"fieldValidation": "Strict"}, manifest))

    async def delete(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        *,
        uid: str,
        resource_version: str,
        propagation: str = "Background",
    ) -> None:
        """Delete one object as it was seen; what is gone already is a success.

        `propagation` says what becomes of what it owns: "Background" deletes it, "Orphan" leaves it alone.

        Raises:
            ConflictError: it has changed, or another one has its name.
        """
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": propagation,
            "preconditions": {"uid": uid, "resourceVersion": resource_version},
        }
        try:
            await self._call("delete", kind, Request("DELETE", kind.path(namespace, name), {}, body))
        except GoneError:
            return

    async def event(self, regarding: Mapping[str, Any], *, warning: bool, reason: str, action: str, note: str) -> None:
        """Post one event about an object: `reason` and `action` in CamelCase, `note` for a person."""
        metadata = regarding["metadata"]
        reference = {key: regarding[key] for key in ("apiVersion", "kind")}
        reference |= {key: metadata[key] for key in ("namespace", "name", "uid", "resourceVersion") if key in metadata}
        event = {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            "metadata": {"generateName": f"{metadata['name']}-", "namespace": metadata["namespace"]},
            "eventTime": micro_time(datetime.datetime.now(datetime.UTC)),
            "reportingController": _CONTROLLER,
            "reportingInstance": self._instance,
            "type": "Warning" if warning else "Normal",
            "reason": reason,
            "action": action,
            "note": note.encode()[:_MAX_NOTE].decode(errors="ignore"),
            "regarding": reference,
        }
        await self._call("create", EVENT, Request("POST", EVENT.path(metadata["namespace"]), {}, event))

    async def _call(self, verb: str, kind: Kind, request: Request) -> Manifest:
        return _checked(await self._send(verb, kind, request), request)

    async def _send(self, verb: str, kind: Kind, request: Request) -> Answer:
        try:
            answer = await self._transport.send(request)
        except KubeError as error:
            self._counted(verb, kind.plural, error.code)
            raise
        self._counted(verb, kind.plural, str(answer.status))
        return answer


def _application(
    kind: Kind, manifest: Mapping[str, Any], manager: str, subresource: str = "", force: bool = True
) -> Request:
    metadata = manifest["metadata"]
    query = {"fieldManager": manager, "force": "true" if force else "false", "fieldValidation": "Strict"}
    path = kind.path(metadata.get("namespace"), metadata["name"], subresource)
    return Request("PATCH", path, query, manifest, _APPLY)


def _checked(answer: Answer, request: Request) -> Manifest:
    if 200 <= answer.status < 300:
        return answer.document
    raise error_of(answer.status, answer.document, f"{request.method} {request.path}")
