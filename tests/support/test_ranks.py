import random

import pytest

from tests.support.ranks import mann_whitney


def test_the_p_value_is_the_one_computed_by_hand():
    # Ranks of the first sample are 1, 2, 3 of six: U = 0, mean 4.5, variance 9 * 7 / 12 = 5.25, z = 4 / 2.2913 = 1.7457
    assert mann_whitney([1, 2, 3], [4, 5, 6]) == pytest.approx(0.0808556, abs=1e-6)
    # Two pairs of ties: ranks 1.5, 3.5, 5 and 1.5, 3.5, 6; variance 9 / 12 * (7 - 12 / 30) = 4.95, |U - 4.5| = 0.5
    assert mann_whitney([1, 2, 3], [1, 2, 4]) == 1.0
    assert mann_whitney([7, 7], [7, 7, 7]) == 1.0


def test_it_is_symmetric_and_sees_order_alone():
    first, second = [0.1, 0.4, 2.5, 9.0], [0.2, 0.3, 8.0, 11.0, 12.0]
    assert mann_whitney(first, second) == mann_whitney(second, first)
    assert mann_whitney(first, second) == mann_whitney([x**3 for x in first], [x**3 for x in second])


def test_of_equal_distributions_it_says_below_a_hundredth_about_once_in_a_hundred():
    chance = random.Random(3)
    values = [
        mann_whitney([chance.lognormvariate(0, 1) for _ in range(50)], [chance.lognormvariate(0, 1) for _ in range(50)])
        for _ in range(2000)
    ]
    assert 0.005 < sum(value < 0.01 for value in values) / len(values) < 0.016
    assert 0.45 < sum(value < 0.5 for value in values) / len(values) < 0.55


def test_a_shift_of_a_few_percent_is_found_in_noise_of_ten():
    chance = random.Random(4)
    first = [chance.gauss(1.0, 0.1) for _ in range(200)]
    assert mann_whitney(first, [chance.gauss(1.06, 0.1) for _ in range(200)]) < 1e-6


def test_a_sample_without_values_is_refused():
    with pytest.raises(ValueError, match="need values"):
        mann_whitney([], [1.0])
