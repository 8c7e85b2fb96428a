"""An API server in memory, behind `Transport`: versions, uids, generations, preconditions, apply and label selectors.

It knows no schema and no defaults, runs no controllers, and applies by merging mappings and replacing lists. What
depends on more than that is told to a real API server in `e2e/operator/`.
"""

import copy
import json
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from pagoda_operator.kube.transport import Answer, Request

_PATH = re.compile(
    r"/(?:api|apis)/(?P<version>v1|[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[^/]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<subresource>[^/]+))?"
)
Key = tuple[str, str, str, str]  # version, plural, namespace, name


class MemoryApiServer:
    """Its objects are in `.objects`; every request that reached it is in `.requests`."""

    def __init__(self) -> None:
        self.objects: dict[Key, dict[str, Any]] = {}
        self.requests: list[Request] = []
        self.on_request: Callable[[Request], None] = lambda _: None
        self._version = 1  # as etcd: no object has it

    @property
    def writes(self) -> list[Request]:
        return [request for request in self.requests if request.method != "GET"]

    async def send(self, request: Request) -> Answer:
        self.requests.append(request)
        self.on_request(request)
        match = _PATH.fullmatch(request.path)
        assert match, request.path
        version, namespace, plural, name, part = match.group("version", "namespace", "plural", "name", "subresource")
        if request.method == "POST":
            return self._post(version, plural, namespace or "", request.body or {})
        if name is None:
            return self._list(version, plural, namespace, request.query.get("labelSelector", ""))
        key = (version, plural, namespace or "", name)
        if request.method == "GET":
            return answer_of(200, self.objects[key]) if key in self.objects else _not_found(name)
        if request.method == "PATCH" and key not in self.objects and not part:
            return self._post(version, plural, namespace or "", request.body or {})
        if key not in self.objects:
            return _not_found(name)
        if not self._matches(key, request):
            return _status(409, "Conflict", name)
        if request.method == "DELETE":
            return answer_of(200, self.objects.pop(key))
        return self._write(key, request, part)

    def _list(self, version: str, plural: str, namespace: str | None, selector: str) -> Answer:
        wanted = dict(term.split("=") for term in selector.split(",") if term)
        items = [
            item
            for key, item in self.objects.items()
            if key[:2] == (version, plural) and namespace in (None, key[2])
            and wanted.items() <= (item["metadata"].get("labels") or {}).items()
        ]  # fmt: skip
        return answer_of(200, {"metadata": {"resourceVersion": str(self._version)}, "items": items})

    def _post(self, version: str, plural: str, namespace: str, body: Mapping[str, Any]) -> Answer:
        made = copy.deepcopy(dict(body))
        metadata = made["metadata"] = dict(made["metadata"])
        self._version += 1
        metadata.setdefault("name", f"{metadata.get('generateName', '')}{self._version}")
        key = (version, plural, namespace, metadata["name"])
        if key in self.objects:
            return _status(409, "AlreadyExists", metadata["name"])
        metadata |= {"uid": str(uuid.uuid4()), "resourceVersion": str(self._version), "generation": 1}
        self.objects[key] = made
        return answer_of(201, made)

    def _matches(self, key: Key, request: Request) -> bool:
        body = request.body or {}
        wanted = body.get("preconditions") or body.get("metadata") or {}
        have = self.objects[key]["metadata"]
        return all(wanted.get(field) in (None, have[field]) for field in ("uid", "resourceVersion"))

    def _write(self, key: Key, request: Request, subresource: str | None) -> Answer:
        before = self.objects[key]
        body = dict(request.body or {})
        wanted = {"status": body.get("status")} if subresource else {k: v for k, v in body.items() if k != "status"}
        after = before | wanted if request.method == "PUT" else _merged(before, wanted)
        after["metadata"] = after["metadata"] | {
            field: before["metadata"][field] for field in ("uid", "resourceVersion", "generation")
        }
        if after != before:
            self._version += 1
            after["metadata"]["resourceVersion"] = str(self._version)
            after["metadata"]["generation"] += after.get("spec") != before.get("spec")
            self.objects[key] = after
        return answer_of(200, self.objects[key])


def _merged(have: Any, wanted: Any) -> Any:
    if isinstance(have, Mapping) and isinstance(wanted, Mapping):
        return dict(have) | {key: _merged(have.get(key), value) for key, value in wanted.items()}
    return copy.deepcopy(wanted)


def answer_of(status: int, document: Mapping[str, Any]) -> Answer:
    """Return an answer as an API server writes it: without spaces."""
    return Answer(status, json.dumps(document, separators=(",", ":")).encode())


def _not_found(name: str) -> Answer:
    return _status(404, "NotFound", name)


def _status(code: int, reason: str, name: str) -> Answer:
    return answer_of(
        code, {"kind": "Status", "reason": reason, "message": f"{name}: {reason}", "details": {"name": name}}
    )
