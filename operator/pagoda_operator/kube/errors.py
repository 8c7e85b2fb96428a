"""What the API server, or the way to it, can answer other than yes.

KubeError
├── UnreachableError   nobody's: no answer in time, or "not now" (429); the same call may work later
├── FailedError        the API server's, or its webhooks' (5xx): may be of this call alone, and may pass
├── ConflictError      somebody else's write came first (409): observe again, then decide again
├── RefusedError       ours or the user's: the object is not valid (400, 413, 422); the message names the field
├── ForbiddenError     whoever granted our rights (401, 403); the message names the right
├── NotServedError     whoever installs: the API server has no such kind
└── GoneError          nobody's: the object or its namespace is on its way out or gone (404, 410)
"""

from collections.abc import Mapping
from typing import Any, ClassVar


class KubeError(Exception):
    """The root of all errors of this package; the message is one line that a person can act on."""

    code: ClassVar[str] = "error"
    """How a metric or a condition names this kind of failure."""


class UnreachableError(KubeError):
    """There was no answer, or one that says "later". Whether the call took effect is not known."""

    code = "Unreachable"


class FailedError(KubeError):
    """The API server answered that it could not do it. Whether the call took effect is not known."""

    code = "Failed"


class ConflictError(KubeError):
    """The object is not as it was when it was read, or another manager owns a field."""

    code = "Conflict"


class RefusedError(KubeError):
    """The API server finds the object invalid."""

    code = "Refused"


class ForbiddenError(KubeError):
    """We may not do this."""

    code = "Forbidden"


class NotServedError(KubeError):
    """The API server does not know the kind."""

    code = "NotServed"


class GoneError(KubeError):
    """What the call is about is gone, or goes."""

    code = "Gone"


_BY_STATUS: Mapping[int, type[KubeError]] = {
    400: RefusedError, 401: ForbiddenError, 403: ForbiddenError, 404: GoneError, 405: NotServedError,
    409: ConflictError, 410: GoneError, 413: RefusedError, 415: RefusedError, 422: RefusedError,
}  # fmt: skip
_MAX_MESSAGE = 1000


def error_of(status: int, document: Mapping[str, Any], what: str) -> KubeError:
    """Return the error of an answer that is none of 2xx; `document` is its Status object, empty if it had none."""
    message = f"{what}: {document.get('message') or f'the API server answered {status}'}"[:_MAX_MESSAGE]
    return _kind_of(status, document)(message.replace("\n", " "))


def _kind_of(status: int, document: Mapping[str, Any]) -> type[KubeError]:
    details = document.get("details") or {}
    if status == 403 and any(cause.get("reason") == "NamespaceTerminating" for cause in details.get("causes") or ()):
        return GoneError
    if status == 404 and not details.get("name"):
        return NotServedError  # "404 page not found", or a Status that names no object
    return _BY_STATUS.get(status, FailedError if status >= 500 else UnreachableError)
