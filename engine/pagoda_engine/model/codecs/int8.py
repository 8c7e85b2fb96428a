"""Int8: K per channel over the block's tokens, V per token, symmetric, the largest magnitude of a group in bf16.

    value = code · (peak / 127),  code in -127 .. 127

KIVI (Liu et al. 2024) found that outliers of K keep to their channels and those of V do not. The peak is stored, not
the step: the group's largest value gets the code ±127 and decodes to the peak again, whatever a bf16 page rounds
between (a code's value moves by at most 127·2**-9 = 0.25 of a step then, so its code is found again).
"""

import torch

from pagoda_engine.model.codecs.arithmetic import (
    floored,
    is_tame,
    magnitude_dtype,
    magnitudes,
    reciprocal,
    tamed,
)
from pagoda_engine.model.codecs.fused import is_fused
from pagoda_engine.model.codecs.interface import Codec, PageShape
from pagoda_engine.model.codecs.payload import PayloadLayout
from pagoda_engine.model.codecs.work import REDUCED, Measures, Planes, Work, empty_measures, work_for

LEVELS = torch.tensor(127.0)


class _Work(Work):
    def __init__(self, pages: torch.Tensor) -> None:
        super().__init__(pages)
        self.bits = Planes(pages, magnitude_dtype(pages.dtype))
        self.largest = empty_measures(pages, magnitude_dtype(pages.dtype))
        self.largest_values = self.largest.all.view(pages.dtype)
        self.peaks = torch.empty_like(self.largest.all, dtype=torch.bfloat16)
        self.scales = empty_measures(pages)


class Int8Codec(Codec):
    """8 bits a value and a bf16 per channel (K) and token (V)."""

    name = "Int8"
    revision = 1

    def __init__(self, shape: PageShape) -> None:
        # Of one layer and head: the channels of K, then the tokens of V.
        measures = (shape.num_layers, shape.num_kv_heads, shape.head_dim + shape.block_tokens)
        self.layout = PayloadLayout({"codes": (shape.sizes, torch.int8), "peaks": (measures, torch.bfloat16)})
        self.payload_bytes = self.layout.num_bytes

    def encode(self, pages: torch.Tensor, payloads: torch.Tensor) -> None:
        """Write codes and peaks; see `Codec.encode`."""
        if not self._encode(pages, payloads):
            finite, broken = tamed(pages)
            self._encode(finite, payloads)
            self.layout.view(payloads, "peaks")[broken] = float("nan")

    def _encode(self, pages: torch.Tensor, payloads: torch.Tensor) -> bool:
        """Encode pages that are tame and return True, else return False."""
        if is_fused(pages):
            return self._encode_fused(pages, payloads)
        work = work_for(_Work, pages)
        magnitudes(pages, work.bits.all)
        for part, dim, maxima in zip(work.bits.parts, REDUCED, work.largest.parts, strict=True):
            torch.amax(part, dim, out=maxima)
        if not is_tame(work.largest.all, pages.dtype):
            return False
        codes, peaks = self._sections(payloads)
        peaks.copy_(floored(work.peaks.copy_(work.largest_values)))
        work.scales.all.copy_(reciprocal(LEVELS, work.peaks))
        scale_into(work.floats, work.widened(pages), work.scales)
        codes.copy_(work.floats.all.round_())
        self.layout.clear_gaps(payloads)
        return True

    def _sections(self, payloads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layout.view(payloads, "codes"), self.layout.view(payloads, "peaks")

    def _encode_fused(self, pages: torch.Tensor, payloads: torch.Tensor) -> bool:
        from pagoda_engine.model.codecs import triton_int8

        largest = triton_int8.encode(pages, *self._sections(payloads))
        self.layout.clear_gaps(payloads)
        return is_tame(largest, torch.float32)

    def decode(self, payloads: torch.Tensor, pages: torch.Tensor) -> None:
        """Multiply codes by their steps; see `Codec.decode`."""
        if is_fused(pages):
            from pagoda_engine.model.codecs import triton_int8

            triton_int8.decode(*self._sections(payloads), pages)
            return
        work = work_for(_Work, pages)
        codes, peaks = self._sections(payloads)
        torch.div(work.scales.all.copy_(peaks), LEVELS, out=work.scales.all)
        scale_into(work.floats, work.floats.all.copy_(codes), work.scales)
        pages.copy_(work.floats.all)


def scale_into(result: Planes, values: torch.Tensor, scales: Measures) -> None:
    """Write fp32 values (of the pages' sizes) · scales."""
    for part, scale, into in zip(values.unbind(2), scales.spread, result.parts, strict=True):
        torch.mul(part, scale, out=into)
