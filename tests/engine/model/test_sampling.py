"""A choice is a pure function of logits, parameters, seed and position."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda_engine.model.interface import Sampling
from pagoda_engine.model.sampling import gumbel_noise, sample

LOGITS = torch.log(torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03]))


def draw(sampling: Sampling, count: int, logits: torch.Tensor = LOGITS) -> np.ndarray:
    chosen = [sample(logits[None], [sampling], [position])[0] for position in range(count)]
    return np.bincount(chosen, minlength=len(logits)) / count


def test_greedy_takes_the_highest_and_of_equals_the_lowest_id() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, 5.0, 5.0, 5.0]])
    assert sample(logits, [Sampling(), Sampling()], [1, 1]) == [1, 0]


def test_frequencies_follow_the_softmax() -> None:
    np.testing.assert_allclose(draw(Sampling(temperature=1.0), 4000), LOGITS.exp().numpy(), atol=0.03)
    flat = torch.softmax(LOGITS / 2.0, 0).numpy()
    np.testing.assert_allclose(draw(Sampling(temperature=2.0, seed=9), 4000), flat, atol=0.03)


def test_top_k_and_top_p_leave_the_most_likely() -> None:
    np.testing.assert_allclose(draw(Sampling(1.0, top_k=2), 2000), [2 / 3, 1 / 3, 0, 0, 0], atol=0.04)
    # 0.5 + 0.25 < 0.76, so the third is still taken
    np.testing.assert_allclose(
        draw(Sampling(1.0, top_p=0.76), 2000), np.array([0.5, 0.25, 0.15, 0, 0]) / 0.9, atol=0.04
    )
    assert draw(Sampling(1.0, top_p=1e-9), 50)[0] == 1.0
    assert draw(Sampling(1.0, top_k=1), 50)[0] == 1.0
    # of the two that top-k leaves, the first alone holds 2/3
    assert draw(Sampling(1.0, top_k=2, top_p=0.6), 50)[0] == 1.0


def test_equal_logits_are_cut_by_lowest_id() -> None:
    counts = draw(Sampling(1.0, top_k=2), 200, torch.zeros(5))
    assert counts[:2].sum() == 1.0
    assert counts[:2].min() > 0.3


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**64 - 1), position=st.integers(0, 2**20), others=st.integers(0, 4), at=st.integers(0, 4))
def test_neighbours_in_the_batch_change_nothing(seed: int, position: int, others: int, at: int) -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, seed=seed)
    (alone,) = sample(LOGITS[None], [sampling], [position])
    place = min(at, others)
    rows = torch.randn(others + 1, 5)
    rows[place] = LOGITS
    samplings = [Sampling(temperature=1.0, seed=other) for other in range(others + 1)]
    samplings[place] = sampling
    assert sample(rows, samplings, [position] * (others + 1))[place] == alone


def test_noise_never_changes() -> None:
    # Golden: another value here means that a seeded request says something else after an upgrade.
    ids = np.array([0, 1, 49151])
    np.testing.assert_allclose(gumbel_noise(42, 7, ids), GOLDEN, rtol=1e-12)
    assert gumbel_noise(42, 7, ids)[1] == gumbel_noise(42, 7, np.array([1]))[0]
    assert not np.allclose(gumbel_noise(42, 8, ids), GOLDEN)
    assert not np.allclose(gumbel_noise(43, 7, ids), GOLDEN)
    np.testing.assert_allclose(gumbel_noise(42 + 2**64, 7, ids), GOLDEN, rtol=1e-12)


def test_noise_is_standard_gumbel() -> None:
    noise = gumbel_noise(1, 1, np.arange(200_000))
    assert noise.mean() == pytest.approx(0.5772, abs=0.01)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.02)
    across = np.array([gumbel_noise(1, position, np.array([5]))[0] for position in range(5000)])
    assert across.mean() == pytest.approx(0.5772, abs=0.06)


GOLDEN = [-0.3659042322398662, 1.5522586835552636, 0.3948717196091394]
