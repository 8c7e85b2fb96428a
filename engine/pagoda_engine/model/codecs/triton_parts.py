"""Pieces of the fused kernels. bf16 goes in and out as 16-bit integers, so that rounding is spelled out here.

Kernels must be launched with `enable_fp_fusion=False` (in LAUNCH): a product fused with a sum is rounded once, and the
payload would differ from what torch writes. A division is `div_rn`; Triton's `/` is off by two units.
"""

import torch
import triton
import triton.language as tl

LAUNCH = {"enable_fp_fusion": False, "num_warps": 4}


def element_view(pages: torch.Tensor) -> torch.Tensor:
    """Return pages as a kernel takes them: fp32, or bf16 as int16."""
    return pages if pages.dtype == torch.float32 else pages.view(torch.int16)


@triton.jit
def widen(bits):  # type: ignore[no-untyped-def]
    """Turn bf16 bits into fp32."""
    return (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def narrow_even(values):  # type: ignore[no-untyped-def]
    """Turn fp32 into the bits of the nearest bf16, halves to even."""
    bits = values.to(tl.int32, bitcast=True)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.int16)


@triton.jit
def load_values(pointer, offsets, mask, IS_WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load page elements as fp32, zero outside of the mask."""
    if IS_WIDE:
        return tl.load(pointer + offsets, mask=mask, other=0.0)
    return widen(tl.load(pointer + offsets, mask=mask, other=0))


@triton.jit
def largest_bits(values):  # type: ignore[no-untyped-def]
    """Return |values| as integers in their order."""
    return values.to(tl.int32, bitcast=True) & 0x7FFFFFFF
