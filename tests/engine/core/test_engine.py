"""What a request can rely on: its tokens, its events, its place in the queue, its end."""

import threading
import time

import pytest

from pagoda_engine.core.engine import Engine
from pagoda_engine.core.request import RequestRejected, TokenEvent
from pagoda_engine.core.settings import EngineSettings
from pagoda_runtime.metrics import Metrics
from tests.engine.core.fakes import SETTINGS, Bench, OracleRunner, reference


def test_a_request_gets_the_tokens_of_the_reference_and_one_event_for_each():
    bench = Bench()
    event = bench.complete(range(10), max_tokens=7)
    assert event.num_events == 7
    assert event.finish == "length"
    bench.assert_baseline()
