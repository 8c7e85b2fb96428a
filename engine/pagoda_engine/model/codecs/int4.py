"""Int4: K per channel over the block's tokens, V per token, between the group's least and greatest value, both in bf16.

    value = (least · (15 - code) + greatest · code) / 15,  code in 0 .. 15

KIVI's shape (Liu et al. 2024). Zero points are worth their bytes here: slow rotary channels hardly change within a
block, and symmetric codes would spend their levels on the offset.

Why a payload is found again. The ends are stored, not step and zero point, and a group's own ends always get the codes
0 and 15, even where bf16 moved what is stored: so they decode to what is stored, which is what the next encode sees.
The codes between: on fp32 pages rounding is far below a step. On bf16 pages, with u the spacing of the larger end, a
step above u is found again because rounding moves a value by u / 2 at most; with a step below u every value of the page
is itself the nearest to its code's value, by less than u / 2; and with a step of u both ends are multiples of u, as is
all between. Division is exact where the result is, so that none of this hangs on a last bit. Products are of 8 by 4
bits and thus exact, so that it does not matter whether a compiler fuses them with the sum.
"""

import torch

from pagoda_engine.model.codecs.arithmetic import floats, is_tame, tamed, workspace
from pagoda_engine.model.codecs.fused import is_fused
from pagoda_engine.model.codecs.int8 import scale_into
from pagoda_engine.model.codecs.interface import LARGEST, SMALLEST, Codec, PageShape
from pagoda_engine.model.codecs.nibbles import check_channels, pack, unpack
from pagoda_engine.model.codecs.payload import PayloadLayout

LEVELS = 15.0


class Int4Codec(Codec):
    """4 bits a value and two bf16 per channel (K) and token (V).

    Raises:
        UnsupportedModelError: head_dim is odd.
    """

    name = "Int4"
    revision = 1

    def __init__(self, shape: PageShape) -> None:
        check_channels(self.name, shape, 2)
        self._channels = shape.head_dim
        # Of one layer and head: the channels of K, then the tokens of V.
        measures = (shape.num_layers, shape.num_kv_heads, shape.head_dim + shape.block_tokens)
        self.layout = PayloadLayout(
            {
                "codes": ((*shape.sizes[:-1], shape.head_dim // 2), torch.uint8),
                "least": (measures, torch.bfloat16),
                "greatest": (measures, torch.bfloat16),
            }
        )
        self.payload_bytes = self.layout.num_bytes

    def encode(self, pages: torch.Tensor, payloads: torch.Tensor) -> None:
        """Write codes and ends; see `Codec.encode`."""
        if not self._encode(pages, payloads):
            finite, broken = tamed(pages)
            self._encode(finite, payloads)
            self.layout.view(payloads, "least")[broken] = float("nan")
            self.layout.view(payloads, "greatest")[broken] = float("nan")

    def _encode(self, pages: torch.Tensor, payloads: torch.Tensor) -> bool:
        """Encode pages that are tame and return True, else return False."""
        if is_fused(pages):
            from pagoda_engine.model.codecs import triton_int4

            largest = triton_int4.encode(pages, *self._sections(payloads))
            self.layout.clear_gaps(payloads)
            return is_tame(largest, torch.float32)
        least, greatest = self._ends(pages)  # (n, L, H, D + T), fp32
        if not bool((torch.maximum(-least, greatest) <= LARGEST).all()):
            return False
        stored_least, stored_greatest = _stored(least), _stored(greatest)
        self.layout.view(payloads, "least").copy_(stored_least)
        self.layout.view(payloads, "greatest").copy_(stored_greatest)
        spread = torch.where(stored_least == stored_greatest, torch.inf, greatest - least)
        codes = floats(pages)
        self._codes(pages, least, spread, codes)
        pack(codes, self.layout.view(payloads, "codes"))
        self.layout.clear_gaps(payloads)
        return True

    def _sections(self, payloads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        view = self.layout.view
        return view(payloads, "codes"), view(payloads, "least"), view(payloads, "greatest")

    def _ends(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        n, layers, _, heads, tokens, channels = pages.shape
        ends = workspace("ends", (2, n, layers, heads, channels + tokens), pages.device, pages.dtype)
        for end, reduce in zip(ends, (torch.amin, torch.amax), strict=True):
            reduce(pages[:, :, 0], -2, out=end[..., :channels])
            reduce(pages[:, :, 1], -1, out=end[..., channels:])
        least, greatest = ends.float()
        return least, greatest

    def _codes(self, pages: torch.Tensor, least: torch.Tensor, spread: torch.Tensor, codes: torch.Tensor) -> None:
        """Write floor((value - least) · 15 / spread + 1/2), whole numbers in fp32."""
        channels = self._channels
        codes.copy_(pages)
        for part, measure in ((0, (..., None, slice(None, channels))), (1, (..., slice(channels, None), None))):
            codes[:, :, part].sub_(least[measure]).mul_(LEVELS).div_(spread[measure])
        codes.add_(0.5).floor_()

    def decode(self, payloads: torch.Tensor, pages: torch.Tensor) -> None:
        """Weigh the ends by the codes; see `Codec.decode`."""
        if is_fused(pages):
            from pagoda_engine.model.codecs import triton_int4

            triton_int4.decode(*self._sections(payloads), pages)
            return
        channels = self._channels
        upper = floats(pages)
        lower = workspace("lower", pages.shape, pages.device, torch.float32)
        unpack(self.layout.view(payloads, "codes"), upper)
        torch.sub(LEVELS, upper, out=lower)
        scale_into(upper, upper, self.layout.view(payloads, "greatest").float(), channels)
        scale_into(lower, lower, self.layout.view(payloads, "least").float(), channels)
        pages.copy_(upper.add_(lower).div_(LEVELS))


def _stored(ends: torch.Tensor) -> torch.Tensor:
    """Return ends as they are stored and read: rounded to bf16, the smallest as zero, zero without a sign."""
    rounded = ends.bfloat16().float()
    return torch.where(rounded.abs() < SMALLEST, 0.0, rounded)
