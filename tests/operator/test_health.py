"""What the operator's process answers over HTTP."""

import aiohttp

from pagoda_operator.health import application
from pagoda_operator.instruments import Instruments
from pagoda_runtime.metrics import Metrics
from pagoda_runtime.web import serving


async def test_health_is_ready_when_the_lease_can_be_had_and_says_what_is_wrong_otherwise() -> None:
    metrics, problems = Metrics(), [""]
    Instruments(metrics).leader.set(0)
    async with (
        serving(application(metrics, lambda: problems[0]), "127.0.0.1", 0) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):

        async def ask(path: str) -> tuple[int, str]:
            async with session.get(path) as answer:
                return answer.status, await answer.text()

        assert await ask("/ready") == (200, '{"status": "ready"}')
        assert "pagoda_operator_leader 0.0" in (await ask("/metrics"))[1]
        problems[0] = "the API server did not answer within 1.5 s"
        status, text = await ask("/ready")
        assert status == 503
        assert problems[0] in text
        assert (await ask("/health"))[0] == 200
