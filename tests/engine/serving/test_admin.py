"""What HTTP may change in an engine, by route, method and what the caller shows: a drain, with the admin token."""

from typing import Any

import pytest

from pagoda_engine.serving.keys import Keys
from pagoda_engine.serving.loading import Loaded
from pagoda_protocol.tenants import admin_token
from tests.engine.serving.conftest import ADMIN, Server, server_of

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
# Every route, and what its methods answer to an empty request; any other method is a 405.
ROUTES: dict[str, dict[str, int]] = {
    "/health": {"GET": 200, "HEAD": 200},
    "/metrics": {"GET": 200, "HEAD": 200},
    "/ready": {"GET": 200, "HEAD": 200},
    "/v1/models": {"GET": 200, "HEAD": 200},
    "/v1/models/tiny": {"GET": 200, "HEAD": 200},
    "/v1/chat/completions": {"POST": 400},
    "/v1/completions": {"POST": 400},
    "/drain": {"POST": 401},
    "/nowhere": dict.fromkeys(METHODS, 404),
}


async def ask(server: Server, method: str, path: str, **headers: str) -> tuple[int, Any]:
    async with server.http.request(method, server.url + path, headers=headers) as answer:
        return answer.status, await answer.read()


async def test_each_route_answers_its_own_methods_alone_and_none_changes_the_state(loaded: Loaded) -> None:
    async with server_of(loaded.service) as server:
        for path, answers in ROUTES.items():
            found = {method: (await ask(server, method, path))[0] for method in METHODS}
            assert found == {method: answers.get(method, 405) for method in METHODS}, path
        assert server.gate.reason is None, "still open"


@pytest.mark.parametrize(
    "shown",
    [{}, {"Authorization": ""}, {"Authorization": "Bearer "}, {"Authorization": "Bearer " + "a1" * 31},
     {"Authorization": "Basic " + "a1" * 32}, {"Authorization": "a1" * 32}, {"Authorization": "Bearer " + "A1" * 32},
     {"Authorization": "Bearer \udcff"}, {"X-Forwarded-For": "127.0.0.1"}],
)  # fmt: skip
async def test_nobody_drains_an_engine_without_the_token_not_even_from_its_own_machine(
    loaded: Loaded, shown: dict[str, str]
) -> None:
    async with server_of(loaded.service) as server:
        status, body = await ask(server, "POST", "/drain", **shown)
        assert status == 401
        assert b"a1a1" not in body, "the token is told to nobody"
        assert server.gate.reason is None


async def test_the_token_drains(loaded: Loaded) -> None:
    async with server_of(loaded.service) as server:
        assert (await ask(server, "POST", "/drain", **ADMIN))[0] == 200
        assert server.gate.reason == "draining"


def test_the_token_follows_from_the_pool_secret(keys: Keys) -> None:
    assert keys.admin_token == admin_token(keys.pool_secret)
