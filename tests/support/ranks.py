"""The Mann–Whitney U test (1947): whether one of two samples tends to be larger than the other.

Two-sided, by the normal approximation with corrections for ties and continuity, which is good from about twenty values
a side on. No assumption about how times are distributed, only about their order.
"""

import itertools
import math
from collections.abc import Sequence


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the p-value of `first` and `second` coming from one distribution.

    Raises:
        ValueError: a sample is empty.
    """
    num_first, num_second = len(first), len(second)
    if not num_first or not num_second:
        raise ValueError("both samples need values")
    total = num_first + num_second
    marked = sorted([(value, True) for value in first] + [(value, False) for value in second])
    rank_sum, ties, seen = 0.0, 0, 0
    for _, group in itertools.groupby(marked, key=lambda pair: pair[0]):
        members = list(group)
        middle = seen + (len(members) + 1) / 2  # equal values share the mean of their ranks
        rank_sum += middle * sum(is_first for _, is_first in members)
        ties += len(members) ** 3 - len(members)
        seen += len(members)
    u = rank_sum - num_first * (num_first + 1) / 2
    variance = num_first * num_second / 12 * (total + 1 - ties / (total * (total - 1)))
    if variance <= 0:  # all values are equal
        return 1.0
    distance = max(0.0, abs(u - num_first * num_second / 2) - 0.5)
    return math.erfc(distance / math.sqrt(2 * variance))
