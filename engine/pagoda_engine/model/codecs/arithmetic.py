"""What the lossy codecs compute with: magnitudes, rounding of measures, what is not finite.

Magnitudes are compared as integers: for floats without their sign the order is the same, it does not depend on how an
instruction set treats NaN or -0, and torch is several times faster at it. Small tensors are few and long: on a page of
SmolLM2 a dozen operations on measures cost as much as two passes over its values.

What else torch is slow at on a CPU, and these files go around: `where` over a whole page (as long as some eighty
additions) and comparisons (five), reductions over few neighbours, conversions to uint8 and from fp8, and whole numbers
as arguments of bitwise operations on small tensors (tensors without axes take half the time).
"""

import torch

from pagoda_engine.model.codecs.interface import LARGEST, SMALLEST

_MAGNITUDES = {torch.float32: torch.tensor(0x7FFFFFFF).int(), torch.bfloat16: torch.tensor(0x7FFF).short()}
_LARGEST_BITS = {dtype: int(torch.tensor(LARGEST, dtype=dtype).view(mask.dtype)) for dtype, mask in _MAGNITUDES.items()}


def magnitude_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the integers in which `magnitudes` of values of `dtype` come."""
    return _MAGNITUDES[dtype].dtype


def magnitudes(values: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Write |values| to `result`, as integers in the order of the values, and return it."""
    mask = _MAGNITUDES[values.dtype]
    return torch.bitwise_and(values.view(mask.dtype), mask, out=result)


class GroupMaxima:
    """The maxima of each `count` (a power of two) neighbouring channels of magnitudes.

    A reduction of few neighbours takes torch longer than comparing the whole page with itself moved by 8, 4, 2 and 1;
    of what these find only each `count`-th is of use.
    """

    def __init__(self, bits: torch.Tensor, count: int) -> None:
        """`bits` (contiguous) will hold the magnitudes, and be scribbled on."""
        near, far = bits.view(-1), torch.empty_like(bits).view(-1)
        self._passes = []
        length, reach = bits.numel(), count // 2
        while reach:
            length -= reach
            self._passes.append((near[:length], near[reach : reach + length], far[:length]))
            near, far, reach = far, near, reach // 2
        self._found = near[::count].view(*bits.shape[:-1], -1)
        self._maxima = self._found.clone(memory_format=torch.contiguous_format)

    def find(self) -> torch.Tensor:
        """Return the maxima, (..., size / count); lies in a workspace."""
        for near, moved, far in self._passes:
            torch.maximum(near, moved, out=far)
        return self._maxima.copy_(self._found)


def is_tame(largest: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether maxima of `magnitudes` of pages of `dtype` hold no NaN, no infinity, nothing beyond LARGEST."""
    # As integers NaN stands above infinity.
    return int(largest.max()) <= _LARGEST_BITS[dtype]


def as_measures(largest: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return maxima of `magnitudes` of pages of `dtype` as fp32, the smallest as zero."""
    return floored(largest.view(dtype).to(torch.float32, copy=True))


def reciprocal(numerator: torch.Tensor, measures: torch.Tensor) -> torch.Tensor:
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
