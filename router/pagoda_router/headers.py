"""Which headers pass through the router, and which end at it. Pure."""

import uuid
from collections.abc import Iterable

from multidict import CIMultiDict, CIMultiDictProxy

from pagoda_router.policies import Decision

REQUEST_ID = "X-Request-Id"
ROUTE = "X-Pagoda-Route"

# RFC 9110 §7.6.1: these speak about one connection.
_HOP_BY_HOP = (
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
)  # fmt: skip
# The body arrives here decoded and is sent with its own length; an error event must be able to follow in the same
# coding, so pods are never asked for a compressed answer.
_NOT_TO_POD = ("host", "content-length", "content-encoding", "accept-encoding", "expect", REQUEST_ID.lower())
_NOT_TO_CLIENT = ("content-length", "date", "server", ROUTE.lower())
_MAX_REQUEST_ID = 128


def request_id(headers: CIMultiDictProxy[str]) -> str:
    """Return the caller's request id if it is a usable one, else a new one."""
    given = headers.get(REQUEST_ID, "")
    is_usable = 0 < len(given) <= _MAX_REQUEST_ID and all("!" <= character <= "~" for character in given)
    return given if is_usable else uuid.uuid4().hex


def to_pod(headers: CIMultiDictProxy[str], identity: str) -> CIMultiDict[str]:
    """Return what a pod gets of a client's headers."""
    passed = _without(headers, _NOT_TO_POD)
    passed[REQUEST_ID] = identity
    return passed


def to_client(headers: CIMultiDictProxy[str], identity: str, decision: Decision) -> CIMultiDict[str]:
    """Return what a client gets of a pod's headers, and where its request went."""
    passed = _without(headers, _NOT_TO_CLIENT)
    passed.setdefault(REQUEST_ID, identity)
    passed[ROUTE] = f"pod={decision.pod.name};reason={decision.reason};tokens={decision.tokens}"
    return passed


def _without(headers: CIMultiDictProxy[str], names: Iterable[str]) -> CIMultiDict[str]:
    named = (name.strip().lower() for value in headers.getall("Connection", ()) for name in value.split(","))
    dropped = {*_HOP_BY_HOP, *names, *named}
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)
