"""What comes in over the socket before it is a request: refused and counted by call when it is none.

    bytes ──► of a known call? ──► not too large? ──► its message? ──► the service

Rules: whatever bytes come, the answer is a status of gRPC and never a traceback; labels come from the contract alone,
so that a caller cannot make new series.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import grpc.aio

from pagoda_protocol.tier import tier_pb2 as pb

_log = logging.getLogger(__name__)

# The most that a message of the contract can need: `requests.MAX_ADDRESSES` blocks of a reserve
MAX_MESSAGE_BYTES = 16 * 2**20
# gRPC itself refuses what is larger still, uncounted
HARD_LIMIT_BYTES = 4 * MAX_MESSAGE_BYTES
SERVER_OPTIONS = (("grpc.max_receive_message_length", HARD_LIMIT_BYTES), ("grpc.so_reuseport", 0))

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Count: TypeAlias = Callable[[str, str], None]

# What the calls of the contract are called in labels
CALLS: Mapping[str, str] = {
    f"/{pb.DESCRIPTOR.package}.Tier/{method.name}": re.sub(r"(?<=[a-z])(?=[A-Z])", "_", method.name).lower()
    for method in pb.DESCRIPTOR.services_by_name["Tier"].methods
}


@dataclass(frozen=True)
class _Unreadable:
    """Stands for a message that is none."""

    reason: str
    code: grpc.StatusCode
    message: str


class Intake(grpc.aio.ServerInterceptor):
    """See the head of this file. `count` is told (call, reason) of each refusal."""

    def __init__(self, count: Count) -> None:
        self._count = count

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        """Return the handler of a call, with these checks before it."""
        handler = await continuation(handler_call_details)
        call = CALLS.get(str(handler_call_details.method))
        if handler is None or call is None:
            self._count("unknown", "method")
            return handler
        return self._checked(call, handler)

    def _checked(self, call: str, handler: Handler) -> Handler:
        read = handler.request_deserializer
        serve: Any = handler.unary_stream if handler.response_streaming else handler.unary_unary
        assert read is not None, "the generated code reads typed messages"
        assert serve is not None, "no call of the contract streams its request"

        def deserialize(data: bytes) -> Any:
            if len(data) > MAX_MESSAGE_BYTES:
                message = f"a message of {len(data)} bytes; the most is {MAX_MESSAGE_BYTES}"
                return _Unreadable("oversized", grpc.StatusCode.RESOURCE_EXHAUSTED, message)
            try:
                return read(data)
            except Exception as error:  # noqa: BLE001 - the parser's errors have no common name over its versions
                message = f"not a message of this call: {type(error).__name__}"
                return _Unreadable("unreadable", grpc.StatusCode.INVALID_ARGUMENT, message)

        async def behave(request: Any, context: Context) -> Any:
            if isinstance(request, _Unreadable):
                self._count(call, request.reason)
                _log.warning("%s refused: %s", call, request.message)
                await context.abort(request.code, request.message)
            return await serve(request, context)

        make: Any = grpc.unary_unary_rpc_method_handler  # whose types are those of the threaded server
        if handler.response_streaming:
            make = grpc.unary_stream_rpc_method_handler
        checked: Handler = make(behave, deserialize, handler.response_serializer)
        return checked
