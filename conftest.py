"""What holds for tests and stories alike: with `PAGODA_NO_SKIPS` set, as in CI, whoever skips has failed."""

import os
from collections.abc import Generator

import pytest

NO_SKIPS = "PAGODA_NO_SKIPS"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Refuse the skip of a test or of one of its fixtures."""
    report = yield
    _refuse(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Refuse the skip of a whole file."""
    report = yield
    _refuse(report)
    return report


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    # An expected failure is reported as a skip too, but it did run.
    if not report.skipped or hasattr(report, "wasxfail") or not os.environ.get(NO_SKIPS):
        return
    where = report.longrepr
    reason = where[2] if isinstance(where, tuple) else where
    report.outcome = "failed"
    report.longrepr = f"{reason}\n{NO_SKIPS} is set: here nothing may be skipped"
