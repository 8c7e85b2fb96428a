"""e4m3 and e2m1 by way of fp16, whose conversions have an instruction; torch's own of fp8 take a hundred times as long.

Both lie in fp16 as they are: sign, exponent and fraction in this order, denormals included, once exponent and fraction
stand where fp16 has the lowest bits of its exponent and the highest of its fraction. Only the bias differs, and with it
the value by a power of two.

    e4m3  s eeee mmm   →  s 0eeee mmm0000000   value · 2**-8
    e2m1  s ee m       →  s 000ee m000000000   value · 2**-14
"""

import torch

E4M3_BIAS = 2.0**8  # what values from `E4m3.read` are yet to be multiplied by
E2M1_BIAS = 2.0**14  # from `E2m1.read`
_TOP = 6.0  # the largest e2m1
_E4M3_DROPPED, _E2M1_DROPPED = (torch.tensor(bits).short() for bits in (7, 9))  # bits of fp16's fraction
_E4M3_BITS = torch.tensor(~(1 << 14)).short()  # what widening by copies of the sign spoils is cleared
_E2M1_BITS = torch.tensor(-(1 << 15) | 7 << 9).short()
_HALF_CODE = 1 << 8
_TO_E2M1 = torch.tensor(5).short()  # from the high nibble of a byte
_THREE, _FOUR, _NIBBLE = (torch.tensor(number).to(torch.int8) for number in (3, 4, 15))
_FRACTION_KEPT = torch.tensor(-1 << 21).int()  # of fp32: two bits, which the halves between e2m1 numbers have
_BELOW_HALF = 0.24  # the least that does not become zero is 0.25; a fraction of two bits has 0.21875 before it


class E4m3:
    """Reads codes of a given shape."""

    def __init__(self, shape: torch.Size, device: torch.device) -> None:
        self._bits = torch.empty(shape, dtype=torch.int16, device=device)
        self._halves = self._bits.view(torch.float16)

    def read(self, codes: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Write the values of codes (any of 8 bits) over E4M3_BIAS, fp32, and return them. There are no NaN here."""
        self._bits.copy_(codes.view(torch.int8)).bitwise_left_shift_(_E4M3_DROPPED).bitwise_and_(_E4M3_BITS)
        return values.copy_(self._halves)


class E2m1:
    """Reads and writes codes of a given shape."""

    def __init__(self, shape: torch.Size, device: torch.device) -> None:
        self._bits = torch.empty(shape, dtype=torch.int16, device=device)
        self._halves = self._bits.view(torch.float16)
        self._signs = torch.empty(shape, dtype=torch.int8, device=device)

    def read(self, codes: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Write the values of codes (int8, in the low nibble) over E2M1_BIAS, fp32, and return them."""
        self._bits.copy_(codes.bitwise_left_shift_(_FOUR)).bitwise_left_shift_(_TO_E2M1).bitwise_and_(_E2M1_BITS)
        return values.copy_(self._halves)

    def write(self, values: torch.Tensor, codes: torch.Tensor) -> None:
        """Write the codes (0 .. 15, int8) of the numbers nearest to fp32 values, halves away from zero.

        Zero has no sign. `values`, which must not be NaN, is scribbled on.
        """
        # To cut the fraction moves no value over a half; what is left fp16 has exactly.
        values.view(torch.int32).bitwise_and_(_FRACTION_KEPT)
        values.clamp_(-_TOP, _TOP)
        torch.ops.aten.hardshrink.out(values, _BELOW_HALF, out=values)
        self._halves.copy_(values.mul_(1 / E2M1_BIAS))
        # Codes are magnitudes in their order, and so half of a code's width is half of its last bit.
        codes.copy_(self._bits.add_(_HALF_CODE).bitwise_right_shift_(_E2M1_DROPPED))
        codes.bitwise_or_(torch.bitwise_right_shift(codes, _THREE, out=self._signs)).bitwise_and_(_NIBBLE)
