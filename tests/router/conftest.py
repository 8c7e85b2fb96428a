"""No test of the router may leave an error in the log: an exception that aiohttp swallows is still one of ours."""

import logging
from collections.abc import Iterator

import pytest

LOGGERS = ("pagoda_", "aiohttp", "asyncio")  # what threads of other tests in this process say late is theirs


@pytest.fixture(autouse=True)
def no_errors_are_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    records = (record for record in caplog.get_records("call") if record.name.startswith(LOGGERS))
    errors = [record for record in records if record.levelno >= logging.ERROR]
    assert not errors, [(record.getMessage(), record.exc_info) for record in errors]
