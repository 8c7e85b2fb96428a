"""Calls of the API server: what goes out, what comes back, and what each failure is called."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from pagoda_operator.kube import errors
from pagoda_operator.kube.api import Api
from pagoda_operator.kube.kinds import CONFIG_MAP, DEPLOYMENT, POD, POOL
from pagoda_operator.kube.transport import Answer, KubeTransport, Request
from tests.support.api_server import MemoryApiServer, answer_of

CONFIG = {
    "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "default", "name": "a"}, "data": {"k": "1"},
}  # fmt: skip


class Says:
    """A transport that gives one answer to everything."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[Request] = []

    async def send(self, request: Request) -> Answer:
        self.requests.append(request)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def status(code: int, reason: str, name: str = "a", **more: Any) -> Answer:
    details = {"name": name, **more} if name else dict(more)
    return answer_of(
        code, {"kind": "Status", "code": code, "reason": reason, "message": f"{reason}!", "details": details}
    )


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (status(400, "BadRequest"), errors.RefusedError),
        (status(401, "Unauthorized"), errors.ForbiddenError),
        (status(403, "Forbidden"), errors.ForbiddenError),
        (status(403, "Forbidden", causes=[{"reason": "NamespaceTerminating"}]), errors.GoneError),
        (status(404, "NotFound"), errors.GoneError),
        (status(404, "NotFound", name=""), errors.NotServedError),
        (answer_of(404, {}), errors.NotServedError),
        (status(409, "Conflict"), errors.ConflictError),
        (status(410, "Expired", name=""), errors.GoneError),
        (status(413, "RequestEntityTooLarge"), errors.RefusedError),
        (status(422, "Invalid"), errors.RefusedError),
        (status(429, "TooManyRequests"), errors.UnreachableError),
        (status(500, "InternalError"), errors.FailedError),
        (answer_of(503, {}), errors.FailedError),
        (status(504, "Timeout"), errors.FailedError),
    ],
)
async def test_each_refusal_has_its_kind_and_its_message(answer: Answer, error: type[errors.KubeError]) -> None:
    with pytest.raises(errors.KubeError) as raised:
        await Api(Says(answer)).apply(CONFIG_MAP, CONFIG, manager="m")
    assert type(raised.value) is error
    assert "PATCH /api/v1/namespaces/default/configmaps/a" in str(raised.value)
    assert answer.document.get("message", str(answer.status)) in str(raised.value)


async def test_what_is_not_there_is_none_and_a_kind_that_is_not_served_is_an_error() -> None:
    assert await Api(Says(status(404, "NotFound"))).get(POD, "default", "a") is None
    with pytest.raises(errors.NotServedError):
        await Api(Says(answer_of(404, {}))).get(POOL, "default", "a")


async def test_deleting_what_is_gone_is_a_success_and_carries_what_was_seen() -> None:
    transport = Says(status(404, "NotFound"))
    await Api(transport).delete(POD, "default", "a", uid="u", resource_version="7", propagation="Orphan")
    (request,) = transport.requests
    assert request.body is not None
    assert request.body["preconditions"] == {"uid": "u", "resourceVersion": "7"}
    assert request.body["propagationPolicy"] == "Orphan"


async def test_creating_what_is_there_is_false_and_another_conflict_is_an_error() -> None:
    assert await Api(Says(status(409, "AlreadyExists"))).create(CONFIG_MAP, CONFIG) is False
    assert await Api(Says(answer_of(201, {}))).create(CONFIG_MAP, CONFIG) is True
    with pytest.raises(errors.ConflictError):
        await Api(Says(status(409, "Conflict"))).create(CONFIG_MAP, CONFIG)


async def test_lists_are_read_to_their_last_page_and_name_the_kind_of_each_item() -> None:
    pages = [
        answer_of(
            200, {"metadata": {"continue": "next", "resourceVersion": "5"}, "items": [{"metadata": {"name": "a"}}]}
        ),
        answer_of(200, {"metadata": {"resourceVersion": "5"}, "items": [{"metadata": {"name": "b"}}]}),
    ]
    transport = Says(*pages)
    items, version = await Api(transport).list(DEPLOYMENT, None, "a=b")
    assert [(item["kind"], item["apiVersion"], item["metadata"]["name"]) for item in items] == [
        ("Deployment", "apps/v1", "a"),
        ("Deployment", "apps/v1", "b"),
    ]
    assert version == "5"
    assert transport.requests[0].path == "/apis/apps/v1/deployments"
    assert transport.requests[1].query == {"limit": "500", "labelSelector": "a=b", "continue": "next"}


async def test_an_apply_names_its_manager_and_lets_no_field_be_dropped() -> None:
    transport = Says(answer_of(200, {}))
    await Api(transport).apply(POOL, CONFIG, manager="m", subresource="status")
    (request,) = transport.requests
    assert request.path == "/apis/pagoda-kv.io/v1alpha1/namespaces/default/inferencepools/a/status"
    assert request.query == {"fieldManager": "m", "force": "true", "fieldValidation": "Strict"}
    assert request.content_type == "application/apply-patch+yaml"


SPACED = Answer(200, b'{"metadata": {"resourceVersion": "8", "uid": "u"}}')


@pytest.mark.parametrize(
    "answer", [answer_of(200, {"metadata": {"uid": "u", "resourceVersion": "8"}}), SPACED], ids=["seen", "parsed"]
)
async def test_an_apply_for_its_version_alone_asks_for_no_more_than_metadata(answer: Answer) -> None:
    transport = Says(answer)
    assert await Api(transport).apply_for_version(CONFIG_MAP, CONFIG, manager="m") == "8"
    (request,) = transport.requests
    assert "as=PartialObjectMetadata" in request.accept
    assert request.query == {"fieldManager": "m", "force": "true", "fieldValidation": "Strict"}


async def test_a_refused_apply_has_no_version_whatever_the_refusal_shows() -> None:
    seen = {"message": "changed", "details": {"uid": "u", "resourceVersion": "8"}}
    with pytest.raises(errors.ConflictError, match="changed"):
        await Api(Says(answer_of(409, seen))).apply_for_version(CONFIG_MAP, CONFIG, manager="m")


async def test_an_event_names_its_object_and_its_reporter() -> None:
    transport = Says(answer_of(201, {}))
    pool = {
        "apiVersion": "pagoda-kv.io/v1alpha1", "kind": "InferencePool",
        "metadata": {"namespace": "default", "name": "chat", "uid": "u", "resourceVersion": "3", "labels": {"a": "b"}},
    }  # fmt: skip
    await Api(transport, "me").event(pool, warning=True, reason="Degraded", action="Reconcile", note="…" * 2000)
    (request,) = transport.requests
    assert request.path == "/apis/events.k8s.io/v1/namespaces/default/events"
    body = dict(request.body or {})
    assert body["metadata"] == {"generateName": "chat-", "namespace": "default"}  # it may not end in a dot
    assert body["regarding"] == {
        "apiVersion": "pagoda-kv.io/v1alpha1", "kind": "InferencePool", "namespace": "default", "name": "chat",
        "uid": "u", "resourceVersion": "3",
    }  # fmt: skip
    assert (body["type"], body["reportingInstance"], body["note"]) == (
        "Warning",
        "me",
        "…" * 341,
    )  # 1,023 bytes: the API server takes 1,024


async def test_every_call_is_counted_by_verb_kind_and_code() -> None:
    counted: list[tuple[str, str, str]] = []
    api = Api(MemoryApiServer(), counted=lambda *call: counted.append(call))
    await api.get(POD, "default", "a")
    await api.create(CONFIG_MAP, CONFIG)
    await api.create(CONFIG_MAP, CONFIG)
    assert counted == [("get", "pods", "404"), ("create", "configmaps", "201"), ("create", "configmaps", "409")]


@asynccontextmanager
async def http_server(handler: Callable[[web.Request], Any]) -> AsyncIterator[str]:
    server = web.Server(handler)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def transport_to(
    url: str, fence: Callable[[], None] = lambda: None, call_seconds: float = 5.0
) -> AsyncIterator[KubeTransport]:
    configuration = Configuration(host=url, api_key={"BearerToken": "Bearer secret"})
    transport = KubeTransport(configuration, fence, call_seconds)
    try:
        yield transport
    finally:
        await transport.close()


async def test_a_request_arrives_as_it_was_meant() -> None:
    seen: dict[str, Any] = {}

    async def handle(request: web.Request) -> web.Response:
        seen.update(path=request.path, query=dict(request.query), headers=request.headers, body=await request.json())
        return web.json_response({"ok": True})

    async with http_server(handle) as url, transport_to(url) as transport:
        answer = await transport.send(
            Request(
                "PATCH", "/api/v1/x", {"labelSelector": "a=b,c in (d)"}, {"e": None}, "application/apply-patch+yaml"
            )
        )
    assert (answer.status, answer.document) == (200, {"ok": True})
    assert seen["query"] == {"labelSelector": "a=b,c in (d)"}
    assert seen["headers"]["Authorization"] == "Bearer secret"
    assert seen["headers"]["Content-Type"] == "application/apply-patch+yaml"
    assert seen["body"] == {"e": None}


async def test_an_answer_that_does_not_come_is_unreachable_within_the_deadline() -> None:
    async def handle(_: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    async with http_server(handle) as url, transport_to(url, call_seconds=0.2) as transport:
        with pytest.raises(errors.UnreachableError, match=r"within 0\.2 s"):
            await transport.send(Request("GET", "/api/v1/x"))


async def test_a_body_that_trickles_is_unreachable_within_the_deadline() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.05)

    async with http_server(handle) as url, transport_to(url, call_seconds=0.3) as transport:
        with pytest.raises(errors.UnreachableError):
            await transport.send(Request("GET", "/api/v1/x"))


async def test_nobody_there_is_unreachable() -> None:
    async with transport_to("http://127.0.0.1:1") as transport:
        with pytest.raises(errors.UnreachableError, match="cannot be reached"):
            await transport.send(Request("GET", "/api/v1/x"))


async def test_an_answer_that_is_no_json_is_told_by_its_status() -> None:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(status=502, text="<html>")

    async with http_server(handle) as url, transport_to(url) as transport:
        with pytest.raises(errors.FailedError, match="answered 502"):
            await Api(transport).get(POD, "default", "a")


async def test_the_fence_is_asked_when_the_connection_is_there_and_before_a_byte_goes_out() -> None:
    class Late(BaseException):
        pass

    arrived: list[str] = []
    is_late = False
    connections: list[object] = []

    def fence() -> None:
        if is_late:
            raise Late

    async def handle(request: web.Request) -> web.Response:
        arrived.append(request.method)
        connections.append(request.transport)
        return web.json_response({})

    async with http_server(handle) as url, transport_to(url, fence) as transport:
        await transport.send(Request("POST", "/api/v1/x", body={}))
        await transport.send(Request("POST", "/api/v1/x", body={}))
        assert connections[0] is connections[1], "the second request had no connection that was there already"
        is_late = True
        for _ in range(2):  # one with the connection that is there, one with a new one
            with pytest.raises(Late):
                await transport.send(Request("POST", "/api/v1/x", body={}))
        await asyncio.sleep(0.05)
    assert arrived == ["POST", "POST"]


async def test_a_request_whose_caller_was_cancelled_is_waited_for() -> None:
    arrived, release = asyncio.Event(), asyncio.Event()

    async def handle(_: web.Request) -> web.Response:
        arrived.set()
        await release.wait()
        return web.json_response({})

    async with http_server(handle) as url, transport_to(url) as transport:
        caller = asyncio.create_task(transport.send(Request("POST", "/api/v1/x", body={})))
        await arrived.wait()
        caller.cancel()
        settled = asyncio.create_task(transport.settled())
        await asyncio.sleep(0.05)
        assert not settled.done()
        release.set()
        assert await settled is True


async def test_settled_says_when_a_request_had_no_answer() -> None:
    async def handle(_: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    async with http_server(handle) as url, transport_to(url, call_seconds=0.2) as transport:
        caller = asyncio.create_task(transport.send(Request("POST", "/api/v1/x", body={})))
        await asyncio.sleep(0.05)
        caller.cancel()
        assert await transport.settled() is False


def test_the_fake_api_server_keeps_to_versions() -> None:
    async def told() -> None:
        server = MemoryApiServer()
        api = Api(server)
        made = await api.apply(CONFIG_MAP, CONFIG, manager="m")
        version = made["metadata"]["resourceVersion"]
        assert await api.apply(CONFIG_MAP, CONFIG, manager="m") == made, "an apply of the same changes nothing"
        changed = json.loads(json.dumps(made)) | {"data": {"k": "2"}}
        await api.apply(CONFIG_MAP, changed, manager="m")
        with pytest.raises(errors.ConflictError):
            await api.apply(CONFIG_MAP, changed, manager="m")
        with pytest.raises(errors.ConflictError):
            await api.delete(CONFIG_MAP, "default", "a", uid=made["metadata"]["uid"], resource_version=version)

    asyncio.run(told())
