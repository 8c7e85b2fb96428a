"""Int8: K per channel over the block's tokens, V per token, symmetric, the largest magnitude of a group in bf16.

    value = code · (peak / 127),  code in -127 .. 127

KIVI (Liu et al. 2024) found that outliers of K keep to their channels and those of V do not. The peak is stored, not
the step: the group's largest value gets the code ±127 and decodes to the peak again, whatever a bf16 page rounds
between (a code's value moves by at most 127·2**-9 = 0.25 of a step then, so its code is found again).
"""

import torch

from pagoda_engine.model.codecs.arithmetic import (
    floats,
    floored,
    is_tame,
    magnitude_dtype,
    magnitudes,
    reciprocal,
    tamed,
    workspace,
)
from pagoda_engine.model.codecs.fused import is_fused
from pagoda_engine.model.codecs.interface import Codec, PageShape
from pagoda_engine.model.codecs.payload import PayloadLayout

LEVELS = 127.0


class Int8Codec(Codec):
    """8 bits a value and a bf16 per channel (K) and token (V)."""

    name = "Int8"
    revision = 1

    def __init__(self, shape: PageShape) -> None:
        self._shape = shape
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
        channels = self._shape.head_dim
        peaks = self.layout.view(payloads, "peaks")  # (n, L, H, D + T)
        largest = workspace("largest", peaks.shape, pages.device, magnitude_dtype(pages.dtype))
        bits = magnitudes(pages)
        torch.amax(bits[:, :, 0], -2, out=largest[..., :channels])
        torch.amax(bits[:, :, 1], -1, out=largest[..., channels:])
        if not is_tame(largest, pages.dtype):
            return False
        measures = floored(largest.view(pages.dtype).to(torch.bfloat16, copy=True))
        peaks.copy_(measures)
        codes = floats(pages)
        scale_into(codes, pages, reciprocal(LEVELS, measures), channels)
        self.layout.view(payloads, "codes").copy_(codes.round_())
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
        values = pages if pages.dtype == torch.float32 else floats(pages)
        values.copy_(self.layout.view(payloads, "codes"))
        scale_into(values, values, self.layout.view(payloads, "peaks").float() / LEVELS, self._shape.head_dim)
        if values is not pages:
            pages.copy_(values)


def scale_into(result: torch.Tensor, pages: torch.Tensor, scales: torch.Tensor, channels: int) -> None:
    """Write pages · scales in fp32, K by the first `channels` scales of (n, L, H, D + T), V by the others."""
    key_scales, value_scales = scales[..., None, :channels], scales[..., channels:, None]
    if pages.dtype != torch.float32:
        result.copy_(pages)  # converting on the way of the product is three times slower
        pages = result
    torch.mul(pages[:, :, 0], key_scales, out=result[:, :, 0])
    torch.mul(pages[:, :, 1], value_scales, out=result[:, :, 1])
