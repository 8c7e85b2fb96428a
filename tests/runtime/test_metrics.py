"""Metrics count, are exposed, and never raise (CASES E28)."""

import logging

import pytest

from pagoda_runtime.metrics import Metrics


def test_counts_are_exposed_under_their_names() -> None:
    metrics = Metrics()
    metrics.counter("pagoda_things", "Things.", ("kind",)).add(2, kind="a")
    metrics.gauge("vllm:num_requests_running", "Running.").set(3)
    metrics.info("vllm:cache_config", "Facts.", {"block_size": "16"})
    text = metrics.exposition().decode()
    assert 'pagoda_things_total{kind="a"} 2.0' in text
    assert "vllm:num_requests_running 3.0" in text
    assert 'vllm:cache_config_info{block_size="16"} 1.0' in text


def test_a_wrong_use_is_logged_once_and_never_raised(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    counter = metrics.counter("pagoda_things", "Things.", ("kind",))
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            counter.add(1, wrong="label")
            counter.add(-1, kind="a")
            counter.set(1, kind="a")
    assert len(caplog.records) == 1


def test_a_series_can_be_forgotten_even_twice() -> None:
    metrics = Metrics()
    gauge = metrics.gauge("pagoda_pods", "Pods.", ("pod",))
    gauge.set(1, pod="a")
    gauge.remove(pod="a")
    gauge.remove(pod="a")
    assert 'pod="a"' not in metrics.exposition().decode()


def test_values_can_be_read_back() -> None:
    metrics = Metrics()
    histogram = metrics.histogram("pagoda_wait_seconds", "Waits.")
    histogram.observe(0.25)
    gauge = metrics.gauge("pagoda_pods", "Pods.", ("pod",))
    gauge.set(4, pod="a")
    assert (histogram.value(), gauge.value(pod="a")) == (0.25, 4)
