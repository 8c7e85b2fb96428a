"""What the lossy codecs compute with: magnitudes, rounding of measures, what is not finite, work space.

Magnitudes are compared as integers: for floats without their sign the order is the same, it does not depend on how an
instruction set treats NaN or -0, and torch is several times faster at it. Small tensors are few and long: on a page of
SmolLM2 a dozen operations on measures cost as much as two passes over its values.
"""

import threading

import torch

from pagoda_engine.model.codecs.interface import LARGEST, SMALLEST

_MAGNITUDE_BITS = {torch.float32: (torch.int32, 0x7FFFFFFF), torch.bfloat16: (torch.int16, 0x7FFF)}
_kept = threading.local()


def workspace(name: str, sizes: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of this thread's to scribble on, kept for the next call of the same name."""
    kept: dict[str, torch.Tensor] = _kept.__dict__
    found = kept.get(name)
    if found is None or found.shape != sizes or found.dtype != dtype or found.device != device:
        found = kept[name] = torch.empty(sizes, dtype=dtype, device=device)
    return found


def magnitude_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the integers in which `magnitudes` of pages of `dtype` come."""
    return _MAGNITUDE_BITS[dtype][0]


def magnitudes(pages: torch.Tensor) -> torch.Tensor:
    """Return |pages| as integers in the order of the values; lies in a workspace."""
    dtype, mask = _MAGNITUDE_BITS[pages.dtype]
    result = workspace("magnitudes", pages.shape, pages.device, dtype)
    return torch.bitwise_and(pages.view(dtype), mask, out=result)


def is_tame(largest: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether maxima of `magnitudes` of pages of `dtype` hold no NaN, no infinity, nothing beyond LARGEST."""
    # The integer maximum of these is the bits of the largest value, and NaN stands above infinity.
    return bool(largest.max().view(dtype) <= LARGEST)


def as_measures(largest: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return maxima of `magnitudes` of pages of `dtype` as fp32, the smallest as zero."""
    return floored(largest.view(dtype).to(torch.float32, copy=True))


def reciprocal(numerator: float, measures: torch.Tensor) -> torch.Tensor:
    """Return numerator / measures in fp32, zero where the measure is zero. Measures are zero or at least SMALLEST."""
    return torch.div(numerator, measures.float()).nan_to_num_(posinf=0.0)


def floored(measures: torch.Tensor) -> torch.Tensor:
    """Set measures (none negative) of SMALLEST or less to zero, in place."""
    return torch.threshold_(measures, SMALLEST, 0.0)


def tamed(pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a copy held within ±LARGEST, all zero where a page has a NaN or infinity, and which do (n,) bool."""
    broken = ~pages.isfinite().flatten(1).all(1)
    held = pages.clamp(-LARGEST, LARGEST)
    held[broken] = 0.0
    return held, broken


def floats(pages: torch.Tensor) -> torch.Tensor:
    """Return a workspace of the pages' shape in fp32; what is in it is undefined."""
    return workspace("floats", pages.shape, pages.device, torch.float32)
