"""Deadlines, backoff, logs, signals and the common HTTP."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys

import aiohttp
import pytest
from aiohttp import web

from pagoda_runtime.deadlines import Deadline, backoff
from pagoda_runtime.logs import fields
from pagoda_runtime.metrics import Metrics
from pagoda_runtime.stop import stop_on_signals
from pagoda_runtime.web import PortTakenError, add_common_routes, serving


def test_calls_that_share_a_deadline_share_its_time() -> None:
    now = 0.0
    deadline = Deadline(2, clock=lambda: now)
    assert deadline.remaining == 2
    now = 1.5
    assert deadline.remaining == 0.5
    assert not deadline.expired
    now = 9
    assert deadline.remaining == 0
    assert deadline.expired


def test_backoff_doubles_to_its_limit_and_is_spread() -> None:
    assert list(itertools.islice(backoff(1, 5, chance=lambda: 1.0), 5)) == [1, 2, 4, 5, 5]
    assert list(itertools.islice(backoff(1, 5, chance=lambda: 0.0), 3)) == [0.5, 1, 2]


def test_log_fields_are_quoted_where_they_must_be() -> None:
    assert fields(pod="chat-0", seconds=0.12345, reason="not found", empty="") == (
        "pod=chat-0 seconds=0.123 reason='not found' empty=''"
    )


async def test_the_first_signal_asks_for_a_graceful_stop() -> None:
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stop.wait(), 10)


def test_a_second_signal_ends_the_process_at_once() -> None:
    program = (
        "import asyncio\n"
        "from pagoda_runtime.stop import stop_on_signals\n"
        "async def main():\n"
        "    with stop_on_signals() as stop:\n"
        "        print('up', flush=True)\n"
        "        await stop.wait()\n"
        "        print('stopping', flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 128 + signal.SIGINT


async def test_every_program_serves_health_and_metrics_and_says_when_its_port_is_taken() -> None:
    metrics = Metrics()
    metrics.gauge("pagoda_up", "Up.").set(1)
    app = web.Application()
    add_common_routes(app, metrics)
    async with serving(app, "127.0.0.1", 0) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
        async with client.get("/health") as answer:
            assert (answer.status, await answer.json()) == (200, {"status": "ok"})
        async with client.get("/metrics") as answer:
            assert "pagoda_up 1.0" in await answer.text()
        other = web.Application()
        with pytest.raises(PortTakenError, match=f"127.0.0.1:{port}.*choose another port"):
            async with serving(other, "127.0.0.1", port):
                pass


@pytest.mark.parametrize(
    "said", [b"\x16\x03\x01\x02\x00", b"POST /upper HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n"]
)
async def test_what_callers_get_wrong_in_http_is_no_error_of_ours(
    said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with serving(web.Application(), "127.0.0.1", 0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        assert b" 400 " in await asyncio.wait_for(reader.readline(), 5)
        writer.close()
    assert [record for record in caplog.records if record.levelname == "ERROR" or record.exc_info] == []
