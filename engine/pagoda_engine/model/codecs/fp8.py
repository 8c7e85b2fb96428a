"""Fp8: e4m3, one power of two per layer, K or V, and head.

    value = code · 2**(exponent - 7)

Precision lies in the code's own exponent; the scale only says where its range is, so a finer or a less round one gains
nothing but bytes. Each decoded value has four significant bits: exact in bf16, and its own code again.
"""

import torch

from pagoda_engine.model.codecs.arithmetic import as_measures, is_tame, magnitude_dtype, magnitudes, tamed
from pagoda_engine.model.codecs.exponents import BROKEN, down_scales, exponents_of, up_scales
from pagoda_engine.model.codecs.interface import Codec, PageShape
from pagoda_engine.model.codecs.payload import PayloadLayout
from pagoda_engine.model.codecs.small_floats import E4M3_BIAS, E4m3
from pagoda_engine.model.codecs.work import Work, work_for


class _Work(Work):
    def __init__(self, pages: torch.Tensor) -> None:
        super().__init__(pages)
        self.bits = torch.empty(pages.shape, dtype=magnitude_dtype(pages.dtype), device=pages.device)
        self.e4m3 = E4m3(pages.shape, pages.device)


class Fp8Codec(Codec):
    """8 bits a value and a byte per head."""

    name = "Fp8"
    revision = 1

    def __init__(self, shape: PageShape) -> None:
        self.layout = PayloadLayout(
            {
                "codes": (shape.sizes, torch.float8_e4m3fn),
                "exponents": ((shape.num_layers, 2, shape.num_kv_heads), torch.uint8),
            }
        )
        self.payload_bytes = self.layout.num_bytes

    def encode(self, pages: torch.Tensor, payloads: torch.Tensor) -> None:
        """Write codes and exponents; see `Codec.encode`."""
        if not self._encode(pages, payloads):
            finite, broken = tamed(pages)
            self._encode(finite, payloads)
            self.layout.view(payloads, "exponents")[broken] = BROKEN

    def _encode(self, pages: torch.Tensor, payloads: torch.Tensor) -> bool:
        """Encode pages that are tame and return True, else return False."""
        work = work_for(_Work, pages)
        largest = magnitudes(pages, work.bits).flatten(-2).amax(-1)  # (n, L, 2, H)
        if not is_tame(largest, pages.dtype):
            return False
        exponents = exponents_of(as_measures(largest, pages.dtype))
        self.layout.view(payloads, "exponents").copy_(exponents)
        scales = down_scales(exponents)[..., None, None]
        scaled = torch.mul(work.widened(pages), scales, out=work.floats.all)
        self.layout.view(payloads, "codes").copy_(scaled)
        self.layout.clear_gaps(payloads)
        return True

    def decode(self, payloads: torch.Tensor, pages: torch.Tensor) -> None:
        """Multiply codes by their scale; see `Codec.decode`."""
        work = work_for(_Work, pages)
        values = work.e4m3.read(self.layout.view(payloads, "codes"), work.floats.all)
        # The bias goes into the scale, whose exponent has room for it.
        scales = up_scales(self.layout.view(payloads, "exponents").int()).mul_(E4M3_BIAS)[..., None, None]
        result = work.target(pages)
        torch.mul(values, scales, out=result)
        if result is not pages:
            pages.copy_(result)
