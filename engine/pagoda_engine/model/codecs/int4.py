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

from pagoda_engine.model.codecs.arithmetic import is_tame, magnitudes, tamed
from pagoda_engine.model.codecs.fused import is_fused
from pagoda_engine.model.codecs.int8 import scale_into
from pagoda_engine.model.codecs.interface import SMALLEST, Codec, PageShape
from pagoda_engine.model.codecs.nibbles import Nibbles, check_channels
from pagoda_engine.model.codecs.payload import PayloadLayout
from pagoda_engine.model.codecs.work import REDUCED, Measures, Planes, Work, empty_measures, measure_sizes, work_for

LEVELS = 15.0
_BELOW_SMALLEST = SMALLEST * (1 - 2.0**-9)  # no bf16 lies between
_LOW_NIBBLE = torch.tensor(15).to(torch.int8)


class _Work(Work):
    def __init__(self, pages: torch.Tensor) -> None:
        super().__init__(pages)
        self.ends = torch.empty((2, *measure_sizes(pages)), device=pages.device)
        self.least, self.greatest = (Measures(end, pages.shape[-1]) for end in self.ends)
        self.bits = torch.empty_like(self.ends, dtype=torch.int32)
        self.spread = empty_measures(pages)
        self.others = Planes(pages)
        self.nibbles = Nibbles(pages)


class Int4Codec(Codec):
    """4 bits a value and two bf16 per channel (K) and token (V).

    Raises:
        UnsupportedModelError: head_dim is odd.
    """

    name = "Int4"
    revision = 1

    def __init__(self, shape: PageShape) -> None:
        check_channels(self.name, shape, 2)
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
        work = work_for(_Work, pages)
        values = work.widened(pages).unbind(2)
        for end, reduce in ((work.least, torch.amin), (work.greatest, torch.amax)):
            for part, dim, into in zip(values, REDUCED, end.parts, strict=True):
                reduce(part, dim, out=into)
        if not is_tame(magnitudes(work.ends, work.bits), torch.float32):
            return False
        codes, least, greatest = self._sections(payloads)
        stored = _stored(work.ends)
        least.copy_(stored[0])
        greatest.copy_(stored[1])
        torch.sub(work.greatest.all, work.least.all, out=work.spread.all)
        work.spread.all.masked_fill_(stored[0] == stored[1], torch.inf)
        work.nibbles.codes.copy_(self._positions(values, work))  # cuts the fraction
        work.nibbles.pack(codes)
        self.layout.clear_gaps(payloads)
        return True

    def _sections(self, payloads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        view = self.layout.view
        return view(payloads, "codes"), view(payloads, "least"), view(payloads, "greatest")

    def _positions(self, values: tuple[torch.Tensor, ...], work: _Work) -> torch.Tensor:
        """Return (value - least) · 15 / spread + 1/2 in fp32."""
        for part, start, into in zip(values, work.least.spread, work.floats.parts, strict=True):
            torch.sub(part, start, out=into)
        work.floats.all.mul_(LEVELS)
        for part, width in zip(work.floats.parts, work.spread.spread, strict=True):
            part.div_(width)
        return work.floats.all.add_(0.5)

    def decode(self, payloads: torch.Tensor, pages: torch.Tensor) -> None:
        """Weigh the ends by the codes; see `Codec.decode`."""
        if is_fused(pages):
            from pagoda_engine.model.codecs import triton_int4

            triton_int4.decode(*self._sections(payloads), pages)
            return
        work = work_for(_Work, pages)
        codes, least, greatest = self._sections(payloads)
        work.nibbles.unpack(codes)
        upper, lower = work.floats, work.others
        upper.all.copy_(work.nibbles.codes.bitwise_and_(_LOW_NIBBLE))
        torch.sub(LEVELS, upper.all, out=lower.all)
        work.greatest.all.copy_(greatest)
        work.least.all.copy_(least)
        scale_into(upper, upper.all, work.greatest)
        scale_into(lower, lower.all, work.least)
        pages.copy_(upper.all.add_(lower.all).div_(LEVELS))


def _stored(ends: torch.Tensor) -> torch.Tensor:
    """Return ends as they are stored and read: rounded to bf16, the smallest as zero, zero without a sign."""
    rounded = ends.bfloat16().float()
    torch.ops.aten.hardshrink.out(rounded, _BELOW_SMALLEST, out=rounded)
    return rounded
