"""The engine's HTTP application: routes, and one shape for every error.

    request ─► middleware: id, errors to JSON ─► handler ─► Answerer

Rules: `/health` and `/metrics` answer from the first moment on, whatever is loading; every answer carries
`x-request-id`; only `POST /drain` changes the engine's state, and it wants the admin token, from this machine too.
"""

import contextlib
import hmac
import logging
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from aiohttp import web

from pagoda_engine.serving.answer import Answerer
from pagoda_engine.serving.errors import (
    ApiError,
    EngineFailedError,
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    TooLargeError,
    UnauthenticatedError,
    UnknownModelError,
)
from pagoda_engine.serving.gate import Gate
from pagoda_engine.serving.measures import GONE, Measures
from pagoda_engine.serving.prepare import prepare_chat, prepare_completion
from pagoda_engine.serving.service import Service
from pagoda_engine.serving.shapes import ChatShape, CompletionShape
from pagoda_runtime.metrics import Metrics
from pagoda_runtime.web import add_common_routes

_log = logging.getLogger(__name__)

REQUEST_ID_HEADER = "x-request-id"
# What a body may hold beside its prompt, and a generous guess of what a token takes in JSON.
_MIN_BODY_BYTES = 1 << 20
_BODY_BYTES_PER_TOKEN = 64

# Of the request that the current task answers. (A request's own storage wants key objects that older aiohttp lacks.)
_request_id: ContextVar[str] = ContextVar("request_id")
_FOREIGN_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Drain = Callable[[], Awaitable[bool]]


def build_app(
    gate: Gate[Service],
    metrics: Metrics,
    *,
    max_model_tokens: int,
    drain: Drain,
    admin_token: str,
    generation: Callable[[], int],
) -> web.Application:
    """Return the application.

    `drain` closes the gate, waits for what is inside and returns whether all of it ended; `admin_token` is what a
    caller must show to have it done; `generation` is that of the live settings in use.
    """
    max_body_bytes = max(_MIN_BODY_BYTES, _BODY_BYTES_PER_TOKEN * max_model_tokens)
    middleware = _answer_errors(Measures(metrics), max_body_bytes)
    app = web.Application(middlewares=[middleware], client_max_size=max_body_bytes)
    add_common_routes(app, metrics)
    _add_state_routes(app, gate, drain, admin_token, generation)
    _add_model_routes(app, gate)
    _add_completion_routes(app, gate)
    app.on_response_prepare.append(_add_request_id)
    return app


def _add_state_routes(
    app: web.Application, gate: Gate[Service], drain: Drain, admin_token: str, generation: Callable[[], int]
) -> None:
    async def ready(_: web.Request) -> web.Response:
        reason, service = gate.reason, gate.service
        shown = {"generation": generation(), "proof": None if service is None else service.proof()}
        if reason is None:
            return web.json_response({"status": "ready", **shown})
        return web.json_response({"status": "not ready", "reason": reason, **shown}, status=503)

    async def drain_now(request: web.Request) -> web.Response:
        shown = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if not hmac.compare_digest(shown, f"Bearer {admin_token}".encode()):
            raise UnauthenticatedError("Only who shows the admin token may drain the engine.")
        is_empty = await drain()
        return web.json_response({"status": "drained" if is_empty else "draining", "num_running": gate.num_inside})

    app.router.add_get("/ready", ready)
    app.router.add_post("/drain", drain_now)


def _add_model_routes(app: web.Application, gate: Gate[Service]) -> None:
    async def models(request: web.Request) -> web.Response:
        with gate.entered() as service:
            service.callers.identify(request.headers.get("Authorization"))
            return web.json_response({"object": "list", "data": [_model(service)]})

    async def model(request: web.Request) -> web.Response:
        with gate.entered() as service:
            service.callers.identify(request.headers.get("Authorization"))
            name = request.match_info["name"]
            if name != service.model:
                raise UnknownModelError(f"The model {name!r} is not served here; use {service.model}.", param="model")
            return web.json_response(_model(service))

    app.router.add_get("/v1/models", models)
    app.router.add_get("/v1/models/{name:.+}", model)  # names may hold slashes


def _add_completion_routes(app: web.Application, gate: Gate[Service]) -> None:
    answerer = Answerer(gate)

    async def chat_completions(request: web.Request) -> web.StreamResponse:
        return await answerer.answer(request, _request_id.get(), prepare_chat, ChatShape)

    async def completions(request: web.Request) -> web.StreamResponse:
        return await answerer.answer(request, _request_id.get(), prepare_completion, CompletionShape)

    async def close_answerer(_: web.Application) -> AsyncIterator[None]:
        with contextlib.closing(answerer):
            yield

    app.router.add_post("/v1/chat/completions", chat_completions)
    app.router.add_post("/v1/completions", completions)
    app.cleanup_ctx.append(close_answerer)


def _model(service: Service) -> dict[str, Any]:
    return {
        "id": service.model,
        "object": "model",
        "created": service.created,
        "owned_by": "pagoda",
        "max_model_len": service.limits.max_tokens,
    }


def _answer_errors(measures: Measures, max_body_bytes: int) -> Any:
    """Return the middleware that gives requests an id, errors OpenAI's shape, and counts."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        _request_id.set(_identify(request.headers.get(REQUEST_ID_HEADER)))
        code = GONE
        try:
            response = await _answered(request, handler, max_body_bytes)
            code = str(response.status)
            return response
        except ConnectionError:
            return web.Response()  # the client is gone: this reaches nobody, but raised it would be logged as our fault
        finally:
            measures.answered(request, code)

    return middleware


async def _answered(request: web.Request, handler: Handler, max_body_bytes: int) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return web.json_response(error.body(), status=error.status)
    except web.HTTPException as error:
        known = _translated(error, request, max_body_bytes)
        return web.json_response(known.body(), status=known.status)
    except web.RequestPayloadError:
        unreadable = InvalidRequestError("The body is not coded as its headers say.")
        return web.json_response(unreadable.body(), status=unreadable.status)
    except ConnectionError:
        raise  # the client is gone: nobody to answer
    except Exception:  # noqa: BLE001 - the request's outermost frame: logged, and told without detail
        _log.exception("request failed %s", _request_id.get())
        failed = EngineFailedError("The engine failed on this request; its log says why.")
        return web.json_response(failed.body(), status=failed.status)


def _translated(error: web.HTTPException, request: web.Request, max_body_bytes: int) -> ApiError:
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return TooLargeError(f"The body is larger than {max_body_bytes} bytes, more than any prompt that fits.")
    if error.status == 404:
        return NotFoundError(f"There is nothing at {request.path}.")
    if error.status == 405:
        return MethodNotAllowedError(f"{request.method} is not allowed at {request.path}.")
    return InvalidRequestError(error.reason)


async def _add_request_id(request: web.Request, response: web.StreamResponse) -> None:
    # What aiohttp answers by itself (an Expect that nobody can meet) has not been through the middleware.
    response.headers[REQUEST_ID_HEADER] = _request_id.get("") or _identify(request.headers.get(REQUEST_ID_HEADER))


def _identify(foreign: str | None) -> str:
    """Return the id that came in if it can stand in headers and logs, else a new one."""
    return foreign if foreign and _FOREIGN_ID.fullmatch(foreign) else uuid.uuid4().hex
