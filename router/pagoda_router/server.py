"""The router's HTTP: its paths, the shape of its errors, its start and its end."""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler

from pagoda_protocol.live import LIVE_FILE, LiveSettings, parse_live
from pagoda_protocol.tenants import TENANTS_KEY, Tenants, parse_tenants
from pagoda_router.arguments import Settings
from pagoda_router.errors import (
    ClientGoneError,
    DrainOverError,
    NoPodError,
    PodError,
    PodSilentError,
    RequestError,
    RouterError,
    StartError,
    error_body,
)
from pagoda_router.fleet import Fleet, following
from pagoda_router.instruments import Instruments
from pagoda_router.kubernetes_pods import KubernetesPods
from pagoda_router.placement import Placer
from pagoda_router.policies import CacheAware, LeastLoaded, Policy, RoundRobin
from pagoda_router.proxy import Limits, Proxy
from pagoda_router.requests import Digester
from pagoda_router.reservations import Book
from pagoda_router.sources import PodsFile, PodSource
from pagoda_router.upstream import session_of_requests
from pagoda_router.waits import Waits
from pagoda_runtime.files import KeyFileError, LiveFile, read_digest_key
from pagoda_runtime.logs import fields
from pagoda_runtime.metrics import Metrics
from pagoda_runtime.stop import stop_on_signals
from pagoda_runtime.web import PortTakenError, add_common_routes, serving

_log = logging.getLogger(__name__)

_CLIENT_GONE = 499
_CUT_SECONDS = 1.0  # past the drain, for what remains to be told that it is over


@dataclass
class Router:
    """A running router."""

    port: int
    fleet: Fleet
    book: Book
    instruments: Instruments
    start_draining: Callable[[], None]


async def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then let running streams end.

    Raises:
        StartError: a file or the address cannot be used.
    """
    with stop_on_signals() as stop:
        async with running(settings) as router:
            _log.info("router listens %s", fields(host=settings.host, port=router.port, policy=settings.policy))
            await stop.wait()
            router.start_draining()
            _log.info("router drains %s", fields(seconds=settings.drain_seconds))


@contextlib.asynccontextmanager
async def running(settings: Settings, limits: Limits | None = None) -> AsyncIterator[Router]:
    """Run a router while the context is open; its end takes no new requests and waits for the running ones.

    Raises:
        StartError: a file or the address cannot be used.
    """
    async with contextlib.AsyncExitStack() as stack:
        try:
            router = await _start(stack, settings, limits or Limits())
        except (KeyFileError, PortTakenError, OSError, ValueError) as error:
            raise StartError(str(error)) from error
        yield router


async def _start(stack: contextlib.AsyncExitStack, settings: Settings, limits: Limits) -> Router:
    """Build the router from its parts; `stack` ends them in the opposite order."""
    digest_key = read_digest_key(settings.secret_dir)
    tenants = await stack.enter_async_context(_tenants(settings))
    live = LiveFile(settings.settings_dir / LIVE_FILE, parse_live, absent=LiveSettings())
    await stack.enter_async_context(live.following())
    digester = Digester(digest_key, tenants, lambda: live.value)
    requests = await stack.enter_async_context(session_of_requests())
    control = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
    metrics, book = Metrics(), Book()
    instruments = Instruments(metrics)
    source = make_source(settings, instruments)
    fleet = Fleet(settings.model_name, book, instruments, control, lambda: source.problem)
    await stack.enter_async_context(following(fleet, source))
    placer = Placer(fleet, make_policy(settings), book, instruments)
    drain = Waits()
    proxy = Proxy(requests, fleet, placer, instruments, digester, limits, drain)
    door = _Door(instruments)
    app = web.Application(middlewares=[door.admit])
    app.router.add_post("/v1/chat/completions", proxy.completions)
    app.router.add_post("/v1/completions", proxy.completions)
    app.router.add_get("/v1/models", proxy.models)
    app.router.add_get("/v1/models/{name:.+}", proxy.models)
    app.router.add_get("/ready", _ready(fleet, door))
    add_common_routes(app, metrics)

    async def end_drain_in_time(_: web.Application) -> None:
        asyncio.get_running_loop().call_later(settings.drain_seconds, drain.end)

    app.on_shutdown.append(end_drain_in_time)
    shutdown_seconds = settings.drain_seconds + _CUT_SECONDS
    port = await stack.enter_async_context(serving(app, settings.host, settings.port, shutdown_seconds))
    return Router(port, fleet, book, instruments, door.close)


def make_source(settings: Settings, instruments: Instruments) -> PodSource:
    """Return where the settings say that pods are found."""
    selector, namespace = settings.pod_selector, settings.namespace
    if selector is None or namespace is None:
        return PodsFile(settings.settings_dir)
    from pagoda_router.kubernetes_api import open_api  # heavy, and of no use otherwise

    return KubernetesPods(lambda: open_api(namespace, selector), instruments)


def make_policy(settings: Settings) -> Policy:
    """Return the policy that the settings name."""
    chance = random.Random()
    if settings.policy == "RoundRobin":
        return RoundRobin()
    if settings.policy == "LeastLoaded":
        return LeastLoaded(chance)
    return CacheAware(chance, settings.block_tokens)


class _Door:
    """Counts requests, gives every error OpenAI's shape, and lets nobody in while draining."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self.is_draining = False

    def close(self) -> None:
        self.is_draining = True

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        is_counted = request.path.startswith("/v1/")
        code = _CLIENT_GONE  # what remains if the handler is cancelled
        try:
            if self.is_draining and is_counted:
                raise NoPodError("the router is draining")
            response = await handler(request)
            code = response.status
        except ClientGoneError as error:
            _log.info("client gone %s", fields(reason=str(error)))
            if request.transport is not None:
                request.transport.abort()
            response = web.Response(status=code)  # reaches nobody
        except (RouterError, web.HTTPException) as error:
            response = _error_response(error)
            code = response.status
        finally:
            if is_counted:
                self._instruments.requests.add(code=str(code))
        if self.is_draining:
            response.force_close()
        return response


def _error_response(error: RouterError | web.HTTPException) -> web.Response:
    """Return what the client is told of an error."""
    kind, param, code = "server_error", None, None
    match error:
        case RequestError():
            status, kind, param, code = error.status, "invalid_request_error", error.param, error.code
        case web.HTTPException():
            status, kind = error.status, "invalid_request_error" if error.status < 500 else kind
        case NoPodError():
            status, code = 503, "no_pod_ready"
        case DrainOverError():
            status, code = 503, "router_stopping"
        case PodError():
            status, code = 503, "pod_lost"
        case PodSilentError():
            status, code = 504, "pod_silent"
        case _:
            raise AssertionError(f"{type(error).__name__} must not reach the client") from error
    message = f"{error.status} {error.reason}" if isinstance(error, web.HTTPException) else str(error)
    response = web.json_response(error_body(message, kind, param, code), status=status)
    if status == 503:
        response.headers["Retry-After"] = "1"
    if isinstance(error, web.HTTPMethodNotAllowed):
        response.headers["Allow"] = error.headers["Allow"]
    return response


def _ready(fleet: Fleet, door: _Door) -> Handler:
    async def ready(_: web.Request) -> web.StreamResponse:
        num_ready = len(fleet.ready())
        if door.is_draining or not num_ready:
            reason = "draining" if door.is_draining else f"no pod is ready ({fleet.reasons()})"
            return web.json_response({"ready": False, "reason": reason}, status=503)
        return web.json_response({"ready": True, "pods_ready": num_ready, "pods": fleet.num_pods})

    return ready


@contextlib.asynccontextmanager
async def _tenants(settings: Settings) -> AsyncIterator[Callable[[], Tenants]]:
    if settings.tenants_dir is None:
        nobody = Tenants()
        yield lambda: nobody
        return
    file = LiveFile(settings.tenants_dir / TENANTS_KEY, parse_tenants)
    async with file.following():
        yield lambda: file.value
