"""The doctor's edge to the API server: GETs and access reviews, each with a deadline, none of which can hang.

A call ends after `CALL_SECONDS` at the latest, whatever the server does (accept and be silent, trickle, never end), and
all together end with the deadline that they share. What may not or cannot be read is noted and told, never guessed.
"""

import json
import os
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import urllib3
import yaml
from kubernetes import client as kubernetes_client
from kubernetes import config as kubernetes_config
from kubernetes.config.config_exception import ConfigException

from pagoda_cli.doctor.snapshot import Manifest, Manifests, Unread
from pagoda_runtime.deadlines import Deadline

CALL_SECONDS = 10.0
MAX_BODY_BYTES = 64 << 20
MAX_POD_BYTES = 64 << 10  # of one pod, many of which are asked at a time
_PAGE = 500
_NOT_NOW = (403, 429)  # what an API server that can be read may say to a question about its version
_NO_KUBERNETES = "is this a Kubernetes API server?"
_CHUNK_BYTES = 64 << 10


class ClusterError(Exception):
    """Nothing can be read of the cluster; the message says why."""


class CallError(Exception):
    """One call failed: `status` is what the server said, None if it said nothing in time."""

    def __init__(self, status: int | None, message: str) -> None:
        super().__init__(message)
        self.status = status


class Server(Protocol):
    """An API server."""

    address: str

    def call(
        self, method: str, path: str, query: Mapping[str, str], body: Manifest | None, seconds: float, max_bytes: int
    ) -> bytes:
        """Call once.

        Raises:
            CallError: when the answer is none of 2xx or too long, or there is none within `seconds`.
        """
        ...


class KubeServer:
    """The real one, over the client's connections and credentials."""

    def __init__(self, client: kubernetes_client.ApiClient) -> None:
        self._client = client
        self.address = str(client.configuration.host)

    def call(
        self, method: str, path: str, query: Mapping[str, str], body: Manifest | None, seconds: float, max_bytes: int
    ) -> bytes:
        """Call once; the protocol says the rest."""
        deadline = Deadline(seconds)
        try:
            _, url, headers, content, _ = self._client.param_serialize(
                method,
                path,
                query_params=list(query.items()),
                header_params={"Accept": "application/json", "Content-Type": "application/json"},
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = self._client.rest_client.pool_manager.request(
                method,
                url,
                headers=headers,
                body=None if content is None else json.dumps(content),
                timeout=urllib3.Timeout(total=seconds),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            try:
                content_bytes = _read(answer, deadline, max_bytes)
            finally:
                answer.close()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise CallError(None, _reason(error)) from error
        if not 200 <= answer.status < 300:
            raise CallError(answer.status, _message(content_bytes, answer.status))
        return content_bytes


def connect(kubeconfig: Path | None, context: str | None) -> KubeServer:
    """Return the API server that a kubeconfig, the environment or a pod's own files name.

    Raises:
        ClusterError: none is named, or the kubeconfig cannot be read.
    """
    named = [str(kubeconfig)] if kubeconfig is not None else os.environ.get("KUBECONFIG", "").split(os.pathsep)
    if any(named) and not any(path and Path(path).exists() for path in named):
        raise ClusterError(f"there is no kubeconfig {' or '.join(filter(None, named))}")
    try:
        client = kubernetes_config.new_client_from_config(
            config_file=None if kubeconfig is None else str(kubeconfig), context=context, persist_config=False
        )
    except ConfigException as error:
        if kubeconfig is not None or context is not None:
            raise ClusterError(f"the kubeconfig cannot be used: {error}") from error
        client = _in_cluster(error)
    except (OSError, ValueError, TypeError, AttributeError, LookupError, yaml.YAMLError) as error:
        raise ClusterError(f"the kubeconfig cannot be read: {error}") from error
    return KubeServer(client)


def _in_cluster(why: Exception) -> kubernetes_client.ApiClient:
    configuration = kubernetes_client.Configuration()
    try:
        kubernetes_config.load_incluster_config(client_configuration=configuration)
    except ConfigException:
        raise ClusterError(f"no cluster is named: {why}") from why
    return kubernetes_client.ApiClient(configuration)


class Reading:
    """What is read of one server before a deadline, and what was not."""

    def __init__(self, server: Server, deadline: Deadline) -> None:
        self._server = server
        self._deadline = deadline
        self.unread: list[Unread] = []

    def check_connection(self) -> None:
        """Make sure that there is a server that knows who asks.

        Raises:
            ClusterError: there is none, or our credentials are not valid.
        """
        try:
            self._json("GET", "/version")
        except CallError as error:
            if error.status is None or (error.status < 500 and error.status not in _NOT_NOW):
                raise ClusterError(f"{self._server.address}: {error}") from error

    def items(self, path: str, what: str, selector: str = "", fields: str = "") -> Manifests | None:
        """Return all objects of a list; None: they were not read, which is noted under `what`."""
        query = {"limit": str(_PAGE)}
        query |= {"labelSelector": selector} if selector else {}
        query |= {"fieldSelector": fields} if fields else {}
        found: list[Manifest] = []
        try:
            while True:
                page = self._json("GET", path, query)
                found += _items(page)
                token = (page.get("metadata") or {}).get("continue")
                if not token:
                    return tuple(found)
                query["continue"] = token
        except CallError as error:
            self._note(f"list {what}", error)
            return None

    def one(self, path: str, what: str) -> tuple[Manifest | None, bool]:
        """Return an object and True, None and True where there is none, None and False where it was not read."""
        try:
            return _checked(self._json("GET", path)), True
        except CallError as error:
            if error.status == 404:
                return None, True
            self._note(f"get {what}", error)
            return None, False

    def review(self, account: str, attributes: Mapping[str, str]) -> bool | None:
        """Return whether a service account (namespace/name) may do something; None: that may not be asked."""
        namespace, _, name = account.partition("/")
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": f"system:serviceaccount:{namespace}:{name}", "resourceAttributes": dict(attributes)}
            | {"groups": ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]},
        }
        try:
            answer = self._json("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body=body)
        except CallError as error:
            self._note("create subjectaccessreviews, which tell what the operator may do", error)
            return None
        return bool((answer.get("status") or {}).get("allowed"))

    def ask_pod(self, namespace: str, name: str, port: int, path: str, seconds: float) -> tuple[int, bytes]:
        """Ask a pod through the API server's proxy; return status and body.

        Raises:
            CallError: neither pod nor API server answered, or we may not ask (status 403).
        """
        proxy = f"/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy{path}"
        try:
            seconds = min(seconds, self._deadline.remaining or 0.001)
            return 200, self._server.call("GET", proxy, {}, None, seconds, MAX_POD_BYTES)
        except CallError as error:
            if error.status == 503 and (body := str(error)).startswith("{"):
                return 503, body.encode()
            raise

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self._deadline.expired

    def _json(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: Manifest | None = None
    ) -> dict[str, Any]:
        seconds = min(CALL_SECONDS, self._deadline.remaining)
        if seconds <= 0:
            raise CallError(None, "the time for reading the cluster is up")
        try:
            document = json.loads(self._server.call(method, path, query or {}, body, seconds, MAX_BODY_BYTES))
        except (ValueError, RecursionError) as error:
            raise CallError(None, f"the answer is not JSON; {_NO_KUBERNETES}") from error
        if not isinstance(document, dict):
            raise CallError(None, f"the answer is no object; {_NO_KUBERNETES}")
        return document

    def _note(self, what: str, error: CallError) -> None:
        unread = Unread(what, str(error), error.status in (401, 403))
        if unread not in self.unread:
            self.unread.append(unread)


def quoted(part: str) -> str:
    """Return a name as it stands in a path."""
    return urllib.parse.quote(part, safe="")


def _read(answer: urllib3.BaseHTTPResponse, deadline: Deadline, max_bytes: int) -> bytes:
    body = bytearray()
    while chunk := answer.read1(_CHUNK_BYTES):
        body += chunk
        if deadline.expired:
            raise CallError(None, "the answer took too long")
        if len(body) > max_bytes:
            raise CallError(None, f"the answer is longer than {max_bytes} bytes")
    return bytes(body)


def _items(page: dict[str, Any]) -> list[Manifest]:
    """Return the objects of a list, each with the kind that the list alone names."""
    version, kind, items = page.get("apiVersion"), page.get("kind"), page.get("items") or []
    if not isinstance(version, str) or not isinstance(kind, str) or not isinstance(items, list):
        raise CallError(None, f"the answer is no list; {_NO_KUBERNETES}")
    named = {"apiVersion": version, "kind": kind.removesuffix("List")}
    return [named | dict(_checked(item)) for item in items]


def _checked(document: object) -> Manifest:
    if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict):
        raise CallError(None, f"the answer holds what is no object of Kubernetes; {_NO_KUBERNETES}")
    return document


def _message(body: bytes, status: int) -> str:
    """Return what an answer that is none of 2xx says: a Status' message, or a pod's own words."""
    try:
        document = json.loads(body)
    except ValueError:
        return f"status {status}"
    if isinstance(document, dict) and document.get("kind") == "Status":
        return str(document.get("message") or f"status {status}")
    return body.decode(errors="replace")


def _reason(error: Exception) -> str:
    cause: Any = getattr(error, "reason", None) or error
    return f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
