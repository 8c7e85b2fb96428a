"""What HTTP may change in a router: nothing, whatever the route and the method."""

from pathlib import Path

from tests.router.fakes import Bench, routed

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
# Every route, and what its methods answer to an empty request; any other method is a 405.
ROUTES: dict[str, dict[str, int]] = {
    "/health": {"GET": 200, "HEAD": 200},
    "/metrics": {"GET": 200, "HEAD": 200},
    "/ready": {"GET": 200, "HEAD": 200},
    "/v1/models": {"GET": 200, "HEAD": 200},
    "/v1/models/tiny": {"GET": 404, "HEAD": 404},  # as the fake pod says
    "/v1/chat/completions": {"POST": 400},
    "/v1/completions": {"POST": 400},
    "/drain": dict.fromkeys(METHODS, 404),
    "/v1/prefixes": dict.fromkeys(METHODS, 404),
}


async def status(bench: Bench, method: str, path: str) -> int:
    async with bench.client.request(method, bench.url + path) as answer:
        await answer.read()
        return answer.status


async def test_each_route_answers_its_own_methods_alone_and_none_changes_the_state(tmp_path: Path) -> None:
    async with routed(tmp_path) as bench:
        for path, answers in ROUTES.items():
            found = {method: await status(bench, method, path) for method in METHODS}
            assert found == {method: answers.get(method, 405) for method in METHODS}, path
        assert await status(bench, "GET", "/ready") == 200, "still open"
