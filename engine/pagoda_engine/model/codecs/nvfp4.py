"""Nvfp4: e2m1, an e4m3 scale per 16 neighbouring channels, an fp32 scale (a power of two) per layer, K or V, and head.

    value = ±{0, 0.5, 1, 1.5, 2, 3, 4, 6} · group scale · head scale

The format of NVIDIA's Blackwell tensor cores: 4.5 bits a value and 4 bytes a head. A group's peak has to become a 6, or
the next encode would find another scale: e4m3 is close enough to peak / 6 for that but for its two smallest numbers,
which are not used (a group 2**16 times weaker than the strongest of its head is zero). Products of code and scales have
six significant bits: exact in fp32 and in bf16.
"""

import torch

from pagoda_engine.model.codecs.arithmetic import (
    GroupMaxima,
    as_measures,
    floored,
    is_tame,
    magnitude_dtype,
    magnitudes,
    reciprocal,
    tamed,
)
from pagoda_engine.model.codecs.exponents import down_scales, exponents_of, up_scales
from pagoda_engine.model.codecs.interface import Codec, PageShape
from pagoda_engine.model.codecs.nibbles import Nibbles, check_channels
from pagoda_engine.model.codecs.payload import PayloadLayout
from pagoda_engine.model.codecs.small_floats import E2M1_BIAS, E4M3_BIAS, E2m1, E4m3
from pagoda_engine.model.codecs.work import Work, work_for

GROUP = 16  # channels
_ONE = torch.tensor(1.0)
_TOP = 6.0  # the largest e2m1
_WEAKEST = 2.5 * 2.0**-9  # group scales below become zero; 3 · 2**-9 is the first that is used


class _Work(Work):
    def __init__(self, pages: torch.Tensor) -> None:
        super().__init__(pages)
        self.bits = torch.empty(pages.shape, dtype=magnitude_dtype(pages.dtype), device=pages.device)
        self.maxima = GroupMaxima(self.bits, GROUP)
        self.grouped = _grouped(self.floats.all)
        self.nibbles = Nibbles(pages)
        self.e2m1 = E2m1(pages.shape, pages.device)
        self.steps = torch.empty(self.grouped.shape[:-1], device=pages.device)  # (n, L, 2, H, T, D / 16)
        self.e4m3 = E4m3(self.steps.shape, pages.device)


class Nvfp4Codec(Codec):
    """4.5 bits a value and 4 bytes per head.

    Raises:
        UnsupportedModelError: head_dim is no multiple of 16.
    """

    name = "Nvfp4"
    revision = 2

    def __init__(self, shape: PageShape) -> None:
        check_channels(self.name, shape, GROUP)
        rows = shape.sizes[:-1]
        self.layout = PayloadLayout(
            {
                "codes": ((*rows, shape.head_dim // 2), torch.uint8),
                "scales": ((*rows, shape.head_dim // GROUP), torch.float8_e4m3fn),
                "heads": (shape.sizes[:3], torch.float32),
            }
        )
        self.payload_bytes = self.layout.num_bytes

    def encode(self, pages: torch.Tensor, payloads: torch.Tensor) -> None:
        """Write codes and scales; see `Codec.encode`."""
        if not self._encode(pages, payloads):
            finite, broken = tamed(pages)
            self._encode(finite, payloads)
            self.layout.view(payloads, "heads")[broken] = torch.nan

    def _encode(self, pages: torch.Tensor, payloads: torch.Tensor) -> bool:
        """Encode pages that are tame and return True, else return False."""
        work = work_for(_Work, pages)
        magnitudes(pages, work.bits)
        largest = work.maxima.find()  # (n, L, 2, H, T, D / 16)
        if not is_tame(largest, pages.dtype):
            return False
        wanted = as_measures(largest, pages.dtype).div_(_TOP)
        exponents = exponents_of(floored(wanted.flatten(-2).amax(-1)))  # (n, L, 2, H)
        heads = up_scales(exponents)
        scales = self.layout.view(payloads, "scales")
        scales.copy_(torch.threshold_(wanted.mul_(down_scales(exponents)[..., None, None]), _WEAKEST, 0.0))
        self.layout.view(payloads, "heads").copy_(heads)
        inverses = reciprocal(_ONE, self._steps(payloads, work))
        torch.mul(_grouped(work.widened(pages)), inverses[..., None], out=work.grouped)
        work.e2m1.write(work.floats.all, work.nibbles.codes)
        work.nibbles.pack(self.layout.view(payloads, "codes"))
        self.layout.clear_gaps(payloads)
        return True

    def decode(self, payloads: torch.Tensor, pages: torch.Tensor) -> None:
        """Multiply the codes' values by their scales; see `Codec.decode`."""
        work = work_for(_Work, pages)
        work.nibbles.unpack(self.layout.view(payloads, "codes"))
        work.e2m1.read(work.nibbles.codes, work.floats.all).mul_(E2M1_BIAS)
        result = work.target(pages)
        torch.mul(work.grouped, self._steps(payloads, work)[..., None], out=_grouped(result))
        if result is not pages:
            pages.copy_(result)

    def _steps(self, payloads: torch.Tensor, work: _Work) -> torch.Tensor:
        """Return what a code's value is multiplied by."""
        heads = self.layout.view(payloads, "heads")[..., None, None]
        steps = work.e4m3.read(self.layout.view(payloads, "scales"), work.steps)
        return steps.mul_(E4M3_BIAS).mul_(heads)


def _grouped(values: torch.Tensor) -> torch.Tensor:
    return values.view(*values.shape[:-1], -1, GROUP)
