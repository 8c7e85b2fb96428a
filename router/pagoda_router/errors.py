"""What can go wrong, by whose fault it is, and how it is told to the caller in OpenAI's shape.

RouterError
├── RequestError         the caller's: answered with its status, never retried
│   └── BodyTooLargeError
├── NoPodError           ours: nobody to send to, 503 with Retry-After
├── PodError             a pod's, before any byte reached the client: retried once on another pod
│   ├── PodRefusedError      nobody listens there
│   ├── PodLostError         the connection ended before an answer
│   ├── PodUnavailableError  it answered 503: starting or draining
│   └── PodHungError         it does not answer /ready either, and another pod does
├── PodSilentError       a pod's: no byte within the idle deadline; not retried, the work may be what hangs it
├── DrainOverError       ours: the answer took longer than the router's drain, 503
├── ClientGoneError      the caller left or does not read
├── DiscoveryError       the API server's, or the network's: it does not say who the pods are
├── HintError            a sidecar's: a line of the hint stream that cannot be believed
└── StartError           whoever started us: a file or an address that cannot be used
"""

import json
from typing import Any, ClassVar


class RouterError(Exception):
    """The root of all errors of this package."""


class RequestError(RouterError):
    """The request cannot be served as it is."""

    status: ClassVar[int] = 400
    code: ClassVar[str] = "invalid_request"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class BodyTooLargeError(RequestError):
    """The body is larger than the router accepts."""

    status = 413
    code = "request_too_large"


class NoPodError(RouterError):
    """No pod is ready; the message says why."""


class PodError(RouterError):
    """A pod gave no answer of which a byte reached the client."""

    reason: ClassVar[str] = "lost"
    """The label of the retry."""
    shows_not_ready: ClassVar[bool] = False
    """Whether other requests would fare no better, so that the pod gets none until it answers `/ready` again."""


class PodRefusedError(PodError):
    """The connection could not be made."""

    reason = "refused"
    shows_not_ready = True


class PodLostError(PodError):
    """The connection ended before the first byte for the client."""

    reason = "lost"


class PodUnavailableError(PodError):
    """The pod answered 503."""

    reason = "unavailable"
    shows_not_ready = True


class PodHungError(PodError):
    """The pod stopped answering anything while it had the request."""

    reason = "hung"


class PodSilentError(RouterError):
    """The pod sent nothing for longer than the idle deadline."""


class DrainOverError(RouterError):
    """The router stops, and the answer is not there."""


class ClientGoneError(RouterError):
    """The client closed its connection or reads nothing any more."""


class HintError(RouterError):
    """A line of a hint stream is not what the protocol says; the message names the field."""


class DiscoveryError(RouterError):
    """Kubernetes does not say who the pods are; `reason` is a metric label.

    unreachable, unauthorized, forbidden, gone, throttled, server_error, refused, garbled.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class StartError(RouterError):
    """The router cannot start; the message names what it needs and what is wrong with it."""


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Return OpenAI's error object."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_event(message: str, code: str) -> bytes:
    """Return the server-sent event that ends a stream which cannot be finished."""
    return b"data: " + json.dumps(error_body(message, "server_error", code=code)).encode() + b"\n\n"
