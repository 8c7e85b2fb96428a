"""Nvfp4: e2m1, an e4m3 scale per 16 neighbouring channels, an fp32 scale (a power of two) per layer, K or V, and head.

    value = ±{0, 0.5, 1, 1.5, 2, 3, 4, 6} · group scale · head scale

The format of NVIDIA's Blackwell tensor cores: 4.5 bits a value and 4 bytes a head. A group's peak has to become a 6, or
the next encode would find another scale: e4m3 is close enough to peak / 6 for that but for its two smallest numbers,
which are not used (a group 2**16 times weaker than the strongest of its head is zero). Products of code and scales have
six significant bits: exact in fp32 and in bf16.
"""

import torch

from pagoda_engine.model.codecs.arithmetic import (
    as_measures,
    floats,
    floored,
    is_tame,
    magnitudes,
    reciprocal,
    tamed,
    workspace,
)
from pagoda_engine.model.codecs.exponents import down_scales, exponents_of, up_scales
from pagoda_engine.model.codecs.interface import Codec, PageShape
from pagoda_engine.model.codecs.nibbles import check_channels, pack, unpack
from pagoda_engine.model.codecs.payload import PayloadLayout

GROUP = 16  # channels
_TOP = 6.0  # the largest e2m1
_SIGN = 8.0  # of a code
_WEAKEST = 2.5 * 2.0**-9  # group scales below become zero; 3 · 2**-9 is the first that is used


class Nvfp4Codec(Codec):
    """4.5 bits a value and 4 bytes per head.

    Raises:
        UnsupportedModelError: head_dim is no multiple of 16.
    """

    name = "Nvfp4"
    revision = 1

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
        largest = _grouped(magnitudes(pages)).amax(-1)  # (n, L, 2, H, T, D / 16)
        if not is_tame(largest, pages.dtype):
            return False
        wanted = as_measures(largest, pages.dtype).div_(_TOP)
        exponents = exponents_of(floored(wanted.flatten(-2).amax(-1)))  # (n, L, 2, H)
        heads = up_scales(exponents)
        scales = self.layout.view(payloads, "scales")
        scales.copy_(torch.threshold_(wanted.mul_(down_scales(exponents)[..., None, None]), _WEAKEST, 0.0))
        self.layout.view(payloads, "heads").copy_(heads)
        codes = floats(pages)
        codes.copy_(pages)
        steps = scales.float().mul_(heads[..., None, None])
        _grouped(codes).mul_(reciprocal(1.0, steps)[..., None])
        _to_codes(codes)
        pack(codes, self.layout.view(payloads, "codes"))
        self.layout.clear_gaps(payloads)
        return True

    def decode(self, payloads: torch.Tensor, pages: torch.Tensor) -> None:
        """Multiply the codes' values by their scales; see `Codec.decode`."""
        values = floats(pages)
        unpack(self.layout.view(payloads, "codes"), values)
        _to_values(values)
        heads = self.layout.view(payloads, "heads")
        steps = self.layout.view(payloads, "scales").float().mul_(heads[..., None, None])
        _grouped(values).mul_(steps[..., None])
        pages.copy_(values)


def _grouped(values: torch.Tensor) -> torch.Tensor:
    return values.view(*values.shape[:-1], -1, GROUP)


def _to_codes(scaled: torch.Tensor) -> None:
    """Turn multiples of a step into e2m1 codes with their sign, in place; halves go away from zero.

    The code is 2y up to 2, y + 2 up to 4, y / 2 + 4 up to 6: the least of three lines.
    """
    magnitude = workspace("magnitude", scaled.shape, scaled.device, torch.float32)
    line = workspace("line", scaled.shape, scaled.device, torch.float32)
    torch.abs(scaled, out=magnitude).clamp_(max=_TOP)
    torch.mul(magnitude, 2.0, out=line)
    torch.minimum(line, magnitude.add_(2.0), out=line)  # magnitude: y + 2
    torch.minimum(line, magnitude.mul_(0.5).add_(3.0), out=line)  # (y + 2) / 2 + 3 = y / 2 + 4
    line.add_(0.5).floor_()
    # Zero has no sign: what rounds to it does so above -1/4.
    torch.where(scaled <= -0.25, line + _SIGN, line, out=scaled)


def _to_values(codes: torch.Tensor) -> None:
    """Turn codes with their sign into e2m1 numbers, in place: the greatest of c / 2, c - 2, 2c - 8."""
    negative = codes >= _SIGN
    codes.sub_(negative.float().mul_(_SIGN))
    values = torch.maximum(torch.maximum(codes * 0.5, codes - 2.0), codes * 2.0 - 8.0)
    torch.where(negative, -values, values, out=codes)
