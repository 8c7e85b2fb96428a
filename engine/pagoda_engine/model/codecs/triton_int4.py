"""Int4 in one pass on a GPU: a program per layer, K or V, and head. Same bytes as `int4.py`, which says what they mean.

A program holds the two halves of a head's channels apart: they are the low and the high nibbles of the same bytes.
"""

import torch
import triton
import triton.language as tl

from pagoda_engine.model.codecs.interface import SMALLEST
from pagoda_engine.model.codecs.triton_parts import (
    LAUNCH,
    element_view,
    largest_bits,
    load_values,
    narrow_even,
    widen,
)

_SMALLEST = tl.constexpr(SMALLEST)
_INFINITY = tl.constexpr(float("inf"))


@triton.jit
def _least(values, mask, AXIS: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.min(tl.where(mask, values, _INFINITY), axis=AXIS)


@triton.jit
def _greatest(values, mask, AXIS: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.max(tl.where(mask, values, -_INFINITY), axis=AXIS)


@triton.jit
def _stored(ends):  # type: ignore[no-untyped-def]
    """Return the bf16 bits under which an end is kept: the smallest as zero, zero without a sign."""
    bits = narrow_even(ends)
    return tl.where(tl.abs(widen(bits)) < _SMALLEST, 0, bits).to(tl.int16)


@triton.jit
def _codes(values, least, greatest):  # type: ignore[no-untyped-def]
    """Return floor((value - least) · 15 / spread + 1/2); ends are tiles of the values' shape."""
    spread = tl.where(_stored(least) == _stored(greatest), _INFINITY, greatest - least)
    return tl.floor(tl.div_rn((values - least) * 15.0, spread) + 0.5).to(tl.int32)


@triton.jit
def _encode(  # type: ignore[no-untyped-def]
    pages, codes, least, greatest, largest, codes_stride, ends_stride,
    HEADS: tl.constexpr, PLANES: tl.constexpr, T: tl.constexpr, HALF: tl.constexpr,
    T_PAD: tl.constexpr, HALF_PAD: tl.constexpr, IS_WIDE: tl.constexpr,
):  # fmt: skip
    plane = tl.program_id(0)
    block = (plane // PLANES).to(tl.int64)
    inner = plane % PLANES  # (layer · 2 + is_value) · HEADS + head
    kind = (inner // HEADS) % 2  # 0 is K, 1 is V
    t, d = tl.arange(0, T_PAD), tl.arange(0, HALF_PAD)
    in_tokens, in_half = t < T, d < HALF
    mask = in_tokens[:, None] & in_half[None, :]
    tile = plane.to(tl.int64) * (T * 2 * HALF) + t[:, None] * (2 * HALF) + d[None, :]
    low = load_values(pages, tile, mask, IS_WIDE)
    high = load_values(pages, tile + HALF, mask, IS_WIDE)
    tl.store(largest + plane, tl.maximum(tl.max(largest_bits(low)), tl.max(largest_bits(high))))

    value_least = tl.where(in_tokens, tl.minimum(_least(low, mask, 1), _least(high, mask, 1)), 0.0)
    value_greatest = tl.where(in_tokens, tl.maximum(_greatest(low, mask, 1), _greatest(high, mask, 1)), 0.0)
    low_least = tl.where(in_half, _least(low, mask, 0), 0.0)
    low_greatest = tl.where(in_half, _greatest(low, mask, 0), 0.0)
    high_least = tl.where(in_half, _least(high, mask, 0), 0.0)
    high_greatest = tl.where(in_half, _greatest(high, mask, 0), 0.0)

    row = block * ends_stride + ((inner // (2 * HEADS)) * HEADS + inner % HEADS) * (2 * HALF + T)
    of_keys, of_values = d < HALF * (1 - kind), t < T * kind  # all or none
    tl.store(least + row + d, _stored(low_least), mask=of_keys)
    tl.store(least + row + HALF + d, _stored(high_least), mask=of_keys)
    tl.store(least + row + 2 * HALF + t, _stored(value_least), mask=of_values)
    tl.store(greatest + row + d, _stored(low_greatest), mask=of_keys)
    tl.store(greatest + row + HALF + d, _stored(high_greatest), mask=of_keys)
    tl.store(greatest + row + 2 * HALF + t, _stored(value_greatest), mask=of_values)

    low_codes = _codes(
        low,
        tl.where(kind == 0, low_least[None, :], value_least[:, None]),
        tl.where(kind == 0, low_greatest[None, :], value_greatest[:, None]),
    )
    high_codes = _codes(
        high,
        tl.where(kind == 0, high_least[None, :], value_least[:, None]),
        tl.where(kind == 0, high_greatest[None, :], value_greatest[:, None]),
    )
    target = codes + block * codes_stride + inner * (T * HALF) + t[:, None] * HALF + d[None, :]
    tl.store(target, (low_codes | (high_codes << 4)).to(tl.uint8), mask=mask)


@triton.jit
def _decode(  # type: ignore[no-untyped-def]
    pages, codes, least, greatest, codes_stride, ends_stride,
    HEADS: tl.constexpr, PLANES: tl.constexpr, T: tl.constexpr, HALF: tl.constexpr,
    T_PAD: tl.constexpr, HALF_PAD: tl.constexpr, IS_WIDE: tl.constexpr,
):  # fmt: skip
    plane = tl.program_id(0)
    block = (plane // PLANES).to(tl.int64)
    inner = plane % PLANES
    kind = (inner // HEADS) % 2  # 0 is K, 1 is V
    t, d = tl.arange(0, T_PAD), tl.arange(0, HALF_PAD)
    mask = (t[:, None] < T) & (d[None, :] < HALF)
    packed = tl.load(
        codes + block * codes_stride + inner * (T * HALF) + t[:, None] * HALF + d[None, :], mask=mask, other=0
    ).to(tl.int32)
    row = block * ends_stride + ((inner // (2 * HEADS)) * HEADS + inner % HEADS) * (2 * HALF + T)
    tile = plane.to(tl.int64) * (T * 2 * HALF) + t[:, None] * (2 * HALF) + d[None, :]
    value_least = widen(tl.load(least + row + 2 * HALF + t, mask=t < T, other=0))
    value_greatest = widen(tl.load(greatest + row + 2 * HALF + t, mask=t < T, other=0))
    fifteen = tl.full((T_PAD, HALF_PAD), 15.0, tl.float32)
    for part in tl.static_range(2):
        code = ((packed >> (4 * part)) & 15).to(tl.float32)
        key_least = widen(tl.load(least + row + part * HALF + d, mask=d < HALF, other=0))
        key_greatest = widen(tl.load(greatest + row + part * HALF + d, mask=d < HALF, other=0))
        lower = tl.where(kind == 0, key_least[None, :], value_least[:, None])
        upper = tl.where(kind == 0, key_greatest[None, :], value_greatest[:, None])
        values = tl.div_rn(upper * code + lower * (15.0 - code), fifteen)
        if IS_WIDE:
            tl.store(pages + tile + part * HALF, values, mask=mask)
        else:
            tl.store(pages + tile + part * HALF, narrow_even(values), mask=mask)


def encode(pages: torch.Tensor, codes: torch.Tensor, least: torch.Tensor, greatest: torch.Tensor) -> torch.Tensor:
    """Write codes and ends of pages; return the largest magnitude of each plane as fp32 bits, int32.

    Where one is not tame, what was written is of no use.
    """
    largest = torch.empty(pages[..., 0, 0].numel(), dtype=torch.int32, device=pages.device)
    sections = (codes, least.view(torch.int16), greatest.view(torch.int16))
    _encode[(largest.numel(),)](
        element_view(pages), *sections, largest, codes.stride(0), least.stride(0), **_settings(pages)
    )
    return largest


def decode(codes: torch.Tensor, least: torch.Tensor, greatest: torch.Tensor, pages: torch.Tensor) -> None:
    """Fill pages from codes and ends."""
    sections = (codes, least.view(torch.int16), greatest.view(torch.int16))
    _decode[(pages[..., 0, 0].numel(),)](
        element_view(pages), *sections, codes.stride(0), least.stride(0), **_settings(pages)
    )


def _settings(pages: torch.Tensor) -> dict[str, int | bool]:
    _, layers, _, heads, tokens, channels = pages.shape
    return {
        "HEADS": heads,
        "PLANES": layers * 2 * heads,
        "T": tokens,
        "HALF": channels // 2,
        "T_PAD": triton.next_power_of_2(tokens),
        "HALF_PAD": triton.next_power_of_2(channels // 2),
        "IS_WIDE": pages.dtype == torch.float32,
        **LAUNCH,
    }
