"""What a caller is told when a request does not succeed, in OpenAI's shape.

ApiError
├── InvalidRequestError      400, the caller's fault: names the field and says what would be right
│   └── ContextLengthError   400, code context_length_exceeded
├── UnauthenticatedError     401
├── UnknownModelError        404, code model_not_found
├── TooLargeError            413
├── EngineFailedError        500, our fault
└── UnavailableError         503, ours and temporary: starting or draining

StartError is for the person who started the engine: it cannot serve, and the message says what would be right.
└── UnservableError          the same at every try
"""

from typing import Any, ClassVar


class StartError(Exception):
    """The engine cannot start as it was told to."""


class UnservableError(StartError):
    """The model cannot be served as it was asked for, however often that is tried."""


class ApiError(Exception):
    """An answer that is not 200; `body()` is what the client gets."""

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "server_error"
    code: str | None = None

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or type(self).code

    def body(self) -> dict[str, Any]:
        """Return the JSON document of the answer."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


class InvalidRequestError(ApiError):
    """The request is malformed or asks for what this engine does not do."""

    status = 400
    kind = "invalid_request_error"


class ContextLengthError(InvalidRequestError):
    """The prompt, or the prompt and what may follow it, is longer than the model's context."""

    code = "context_length_exceeded"


class UnauthenticatedError(ApiError):
    """No known API key came with the request."""

    status = 401
    kind = "invalid_request_error"
    code = "invalid_api_key"


class UnknownModelError(ApiError):
    """The request names a model that is not served here."""

    status = 404
    kind = "invalid_request_error"
    code = "model_not_found"


class NotFoundError(ApiError):
    """There is no such path."""

    status = 404
    kind = "invalid_request_error"


class MethodNotAllowedError(ApiError):
    """The path exists, the method does not."""

    status = 405
    kind = "invalid_request_error"


class TooLargeError(ApiError):
    """The body is larger than any prompt that fits the model."""

    status = 413
    kind = "invalid_request_error"


class EngineFailedError(ApiError):
    """The engine could not finish a request that was in order."""


class UnavailableError(ApiError):
    """The engine takes no requests right now: it is starting or draining."""

    status = 503
    code = "unavailable"
