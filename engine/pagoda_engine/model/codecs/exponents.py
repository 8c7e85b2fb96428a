"""Scales that are powers of two, kept as one exponent: multiplying by one is exact, so the codes alone carry rounding.

    exponent e of a peak:  2**e ≤ r < 2**(e+1), r = peak rounded to four significant bits, ties to even

Four bits are what e4m3 has: a peak that would be rounded up past a power of two when it is written is counted as if it
had been, and so what was written gives the same exponent again. Stored as e + 127, 0 for a group that is zero, 255 for
one that is broken.
"""

from functools import cache

import torch

BROKEN = 255
_BIAS = 127
_MANTISSA_BITS = 23
# Of the 23: what, added, carries into the exponent just where four significant bits would, from 1.9375 = 15.5 / 8.
_HALF_OF_FOURTH = 1 << 19
# The peak's scaled value is in [2**7, 240], and 240 is an e4m3 number: four bits give 15 · 2**4 at most.
_TOP_EXPONENT = 7


def exponents_of(peaks: torch.Tensor) -> torch.Tensor:
    """Return the stored exponents, int32, of fp32 peaks that are zero or normal."""
    return (peaks.view(torch.int32) + _HALF_OF_FOURTH) >> _MANTISSA_BITS


def down_scales(exponents: torch.Tensor) -> torch.Tensor:
    """Return what brings a group's values into e4m3's range, fp32, of int32; zero for a group that is zero."""
    return _looked_up(_scales(exponents.device)[0], exponents)


def up_scales(exponents: torch.Tensor) -> torch.Tensor:
    """Return the inverses of `down_scales`, zero for a group that is zero and NaN for one that is broken, fp32."""
    return _looked_up(_scales(exponents.device)[1], exponents)


def _looked_up(table: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    return table.index_select(0, exponents.flatten()).view(exponents.shape)


@cache
def _scales(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both scales of all 256 exponents. What is not normal no tame group has."""
    up = torch.exp2(torch.arange(256, dtype=torch.float64) - _BIAS - _TOP_EXPONENT)
    down = (1 / up).float()
    up[0], down[0], up[BROKEN] = 0.0, 0.0, torch.nan
    return down.to(device), up.float().to(device)
