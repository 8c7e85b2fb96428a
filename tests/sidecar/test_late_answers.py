"""Callers that are gone when their answer comes, at a real server of grpc's."""

import asyncio
import logging
import random
import time
from collections import Counter

import grpc
import grpc.aio
import pytest

from pagoda_sidecar.intake import CALLS
from pagoda_sidecar.late_answers import late_answers_counted

LOGGER = logging.getLogger("grpc._cython.cygrpc")
METHOD = next(method for method, call in CALLS.items() if call == "settle")
SECONDS = 20


async def answer(request: bytes, context: object) -> bytes:
    await asyncio.sleep(0.002)
    return b"x"


async def test_an_answer_that_comes_too_late_is_counted_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    counted: Counter[tuple[str, str]] = Counter()
    service, name = METHOD.strip("/").split("/")
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(answer)  # type: ignore[arg-type]  # typed for the threaded server
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    def call(seed: int) -> None:
        chance, end = random.Random(seed), time.monotonic() + SECONDS
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask = channel.unary_unary(METHOD)
            while not counted and not caplog.records and time.monotonic() < end:
                try:
                    ask(b"", timeout=chance.uniform(0.001, 0.006))
                except grpc.RpcError:
                    continue

    with late_answers_counted(lambda *labels: counted.update([labels])):
        await asyncio.gather(*(asyncio.to_thread(call, seed) for seed in range(4)))
        await server.stop(0)
    assert caplog.messages == []
    assert set(counted) == {("settle", "late")}


class ExecuteBatchError(Exception):
    """Named like grpc's."""


@pytest.mark.parametrize(
    ("message", "error", "counted"),
    [
        (f"ExecuteBatchError raised in core by servicer method [{METHOD}]", ExecuteBatchError(), [("settle", "late")]),
        ("ExecuteBatchError raised in core by servicer method [/x/Y]", ExecuteBatchError(), [("unknown", "late")]),
        (f"ExecuteBatchError raised in core by servicer method [{METHOD}]", RuntimeError(), []),
        (f"Unexpected [ValueError] raised by servicer method [{METHOD}]", ValueError(), []),
        ("something else", None, []),
    ],
)
def test_nothing_else_of_grpc_is_kept_from_the_log(
    caplog: pytest.LogCaptureFixture, message: str, error: Exception | None, counted: list[tuple[str, str]]
) -> None:
    found: list[tuple[str, str]] = []
    with late_answers_counted(lambda *labels: found.append(labels)):
        LOGGER.error(message, exc_info=error)
    assert found == counted
    assert caplog.messages == ([] if counted else [message])
    LOGGER.error(message, exc_info=error)
    assert caplog.messages[-1] == message, "it is over with the context"
