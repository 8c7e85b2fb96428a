"""A pod's grace period covers what its programs may take to end, each as long as it says itself.

engine   streams ≤ drainSeconds ┐
         first hand-over        ┴─► second hand-over ─► exits
sidecar                                                 TERM ─► flushes, or is killed by its supervisor
"""

import pytest

from pagoda_engine import drain
from pagoda_engine.serving.loading import HAND_OVER_SECONDS as PASS_SECONDS
from pagoda_operator.children import engine
from pagoda_sidecar.client import HAND_OVER_SLACK_SECONDS
from pagoda_sidecar.supervisor import LOOK_SECONDS, STOP_SECONDS
from tests.operator.children.pools import POOLS, containers_of, templates_of

ENGINE_EXIT_SECONDS = 5
every_pool = pytest.mark.parametrize("name", POOLS)


def test_both_passes_of_a_hand_over_end_in_the_time_that_is_there_for_them() -> None:
    assert engine.HAND_OVER_SECONDS >= 2 * (PASS_SECONDS + HAND_OVER_SLACK_SECONDS)


def test_whoever_waits_for_the_drain_gives_up_before_the_hand_over_has_to_be_done() -> None:
    assert drain.MARGIN_SECONDS <= engine.HAND_OVER_SECONDS


def test_a_sidecar_is_ended_by_its_supervisor_and_not_by_the_kubelet() -> None:
    assert engine.FLUSH_SECONDS >= STOP_SECONDS


@every_pool
def test_all_of_it_one_after_the_other_is_within_the_pods_grace(name: str) -> None:
    hand_over = 2 * (PASS_SECONDS + HAND_OVER_SLACK_SECONDS)
    needed = POOLS[name].drain_seconds + hand_over + ENGINE_EXIT_SECONDS + STOP_SECONDS
    assert templates_of(POOLS[name])["engine"]["spec"]["terminationGracePeriodSeconds"] >= needed


@every_pool
def test_a_sidecar_that_hangs_has_the_time_that_its_supervisor_gives_it(name: str) -> None:
    sidecar = containers_of(templates_of(POOLS[name])["engine"])["sidecar"]
    assert sidecar["livenessProbe"]["terminationGracePeriodSeconds"] > STOP_SECONDS + LOOK_SECONDS
