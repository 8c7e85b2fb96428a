"""Scales that are powers of two, kept as one exponent: multiplying by one is exact, so the codes alone carry rounding.

    exponent e of a peak:  2**e ≤ r < 2**(e+1), r = peak rounded to four significant bits, ties to even

Four bits are what e4m3 has: a peak that would be rounded up past a power of two when it is written is counted as if it
had been, and so what was written gives the same exponent again. Stored as e + 127, 0 for a group that is zero, 255 for
one that is broken.
"""

import torch

BROKEN = 255
_BIAS = 127
_MANTISSA_BITS = 23
_CUT_BITS = 20  # of the 23, for four significant bits with the one that is not stored
# The peak's scaled value is in [2**7, 240], and 240 is an e4m3 number: four bits give 15 · 2**4 at most.
_TOP_EXPONENT = 7


def exponents_of(peaks: torch.Tensor) -> torch.Tensor:
    """Return the stored exponents, int32, of fp32 peaks that are zero or normal."""
    bits = peaks.view(torch.int32)
    half = (1 << (_CUT_BITS - 1)) - 1
    rounded = bits + half + ((bits >> _CUT_BITS) & 1)
    return rounded >> _MANTISSA_BITS


def down_scales(exponents: torch.Tensor) -> torch.Tensor:
    """Return what brings a group's values into e4m3's range, fp32; zero for a group that is zero."""
    scales = ((_TOP_EXPONENT + 2 * _BIAS - exponents) << _MANTISSA_BITS).view(torch.float32)
    return torch.where(exponents == 0, 0.0, scales)


def up_scales(exponents: torch.Tensor) -> torch.Tensor:
    """Return the inverses of `down_scales`, zero for a group that is zero and NaN for one that is broken, fp32."""
    scales = ((exponents - _TOP_EXPONENT) << _MANTISSA_BITS).view(torch.float32)
    scales = torch.where(exponents == 0, 0.0, scales)
    return torch.where(exponents == BROKEN, torch.nan, scales)
