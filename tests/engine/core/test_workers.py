"""How often a log hears of tiers that fail."""

import pytest

from pagoda_engine.core.tiers import TierUnavailable
from pagoda_engine.core.workers import QUIET_SECONDS, Outage

LATE = TierUnavailable("deadline")


def test_an_outage_is_told_of_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture):
    outage = Outage("a load", lambda: 0.0)
    for _ in range(3):
        outage.failed(LATE)
    for _ in range(3):
        outage.worked()
    assert caplog.messages == ["a load failed: deadline num_unsaid_before=0", "a load works again"]


def test_what_fails_and_works_in_turns_is_told_of_now_and_then(caplog: pytest.LogCaptureFixture):
    now = 0.0
    outage = Outage("a load", lambda: now)
    for _ in range(100):
        outage.failed(LATE)
        outage.worked()
    assert len(caplog.messages) == 2
    outage.failed(LATE)
    now += QUIET_SECONDS
    outage.failed(LATE)
    assert caplog.messages[2:] == ["a load failed: deadline num_unsaid_before=100"], "an outage that lasts is no secret"
    outage.worked()
    assert caplog.messages[3:] == ["a load works again"]


def test_a_failure_that_is_a_bug_is_told_of_each_time(caplog: pytest.LogCaptureFixture):
    outage = Outage("a load", lambda: 0.0)
    for _ in range(2):
        outage.failed(ValueError("a bug"))
    assert caplog.messages == ["a load failed in a way no tier should"] * 2
