"""Int8 in one pass on a GPU: a program per layer, K or V, and head. The bytes are those of `int8.py`, see there."""

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

_ROUND = tl.constexpr(12582912.0)  # 1.5 · 2**23: added and taken away again, it leaves the nearest whole number
_SMALLEST = tl.constexpr(SMALLEST)


@triton.jit
def _encode(  # type: ignore[no-untyped-def]
    pages, codes, peaks, largest, codes_stride, peaks_stride,
    HEADS: tl.constexpr, PLANES: tl.constexpr, T: tl.constexpr, D: tl.constexpr,
    T_PAD: tl.constexpr, D_PAD: tl.constexpr, IS_WIDE: tl.constexpr,
):  # fmt: skip
    plane = tl.program_id(0)
    block = (plane // PLANES).to(tl.int64)
    inner = plane % PLANES  # (layer · 2 + is_value) · HEADS + head
    kind = (inner // HEADS) % 2  # 0 is K, 1 is V
    t, d = tl.arange(0, T_PAD), tl.arange(0, D_PAD)
    tile = t[:, None] * D + d[None, :]
    mask = (t[:, None] < T) & (d[None, :] < D)
    values = load_values(pages, plane.to(tl.int64) * (T * D) + tile, mask, IS_WIDE)
    bits = largest_bits(values)
    by_channel, by_token = tl.max(bits, axis=0), tl.max(bits, axis=1)
    tl.store(largest + plane, tl.max(by_token, axis=0))
    key_peaks = narrow_even(by_channel.to(tl.float32, bitcast=True))
    value_peaks = narrow_even(by_token.to(tl.float32, bitcast=True))
    key_measures = widen(key_peaks)
    value_measures = widen(value_peaks)
    key_peaks = tl.where(key_measures <= _SMALLEST, 0, key_peaks).to(tl.int16)
    value_peaks = tl.where(value_measures <= _SMALLEST, 0, value_peaks).to(tl.int16)
    row = block * peaks_stride + ((inner // (2 * HEADS)) * HEADS + inner % HEADS) * (D + T)
    tl.store(peaks + row + d, key_peaks, mask=d < D * (1 - kind))
    tl.store(peaks + row + D + t, value_peaks, mask=t < T * kind)
    measures = tl.where(kind == 0, key_measures[None, :], value_measures[:, None])
    inverses = tl.where(measures <= _SMALLEST, 0.0, tl.div_rn(tl.full((T_PAD, D_PAD), 127.0, tl.float32), measures))
    rounded = (values * inverses + _ROUND) - _ROUND
    tl.store(codes + block * codes_stride + inner * (T * D) + tile, rounded.to(tl.int8), mask=mask)


@triton.jit
def _decode(  # type: ignore[no-untyped-def]
    pages, codes, peaks, codes_stride, peaks_stride,
    HEADS: tl.constexpr, PLANES: tl.constexpr, T: tl.constexpr, D: tl.constexpr,
    T_PAD: tl.constexpr, D_PAD: tl.constexpr, IS_WIDE: tl.constexpr,
):  # fmt: skip
    plane = tl.program_id(0)
    block = (plane // PLANES).to(tl.int64)
    inner = plane % PLANES
    kind = (inner // HEADS) % 2  # 0 is K, 1 is V
    t, d = tl.arange(0, T_PAD), tl.arange(0, D_PAD)
    tile = t[:, None] * D + d[None, :]
    mask = (t[:, None] < T) & (d[None, :] < D)
    row = block * peaks_stride + ((inner // (2 * HEADS)) * HEADS + inner % HEADS) * (D + T)
    key_measures = widen(tl.load(peaks + row + d, mask=d < D, other=0))
    value_measures = widen(tl.load(peaks + row + D + t, mask=t < T, other=0))
    measures = tl.where(kind == 0, key_measures[None, :], value_measures[:, None])
    steps = tl.div_rn(measures, tl.full((T_PAD, D_PAD), 127.0, tl.float32))
    loaded = tl.load(codes + block * codes_stride + inner * (T * D) + tile, mask=mask, other=0)
    values = loaded.to(tl.float32) * steps
    target = pages + plane.to(tl.int64) * (T * D) + tile
    if IS_WIDE:
        tl.store(target, values, mask=mask)
    else:
        tl.store(target, narrow_even(values), mask=mask)


def encode(pages: torch.Tensor, codes: torch.Tensor, peaks: torch.Tensor) -> torch.Tensor:
    """Write codes and peaks of pages; return the largest magnitude of each plane as fp32 bits, int32.

    Where one is not tame, what was written is of no use.
    """
    largest = torch.empty(pages[..., 0, 0].numel(), dtype=torch.int32, device=pages.device)
    sections = (codes, peaks.view(torch.int16))
    _encode[(largest.numel(),)](
        element_view(pages), *sections, largest, codes.stride(0), peaks.stride(0), **_settings(pages)
    )
    return largest


def decode(codes: torch.Tensor, peaks: torch.Tensor, pages: torch.Tensor) -> None:
    """Fill pages from codes and peaks."""
    sections = (codes, peaks.view(torch.int16))
    _decode[(pages[..., 0, 0].numel(),)](
        element_view(pages), *sections, codes.stride(0), peaks.stride(0), **_settings(pages)
    )


def _settings(pages: torch.Tensor) -> dict[str, int | bool]:
    _, layers, _, heads, tokens, channels = pages.shape
    return {
        "HEADS": heads,
        "PLANES": layers * 2 * heads,
        "T": tokens,
        "D": channels,
        "T_PAD": triton.next_power_of_2(tokens),
        "D_PAD": triton.next_power_of_2(channels),
        "IS_WIDE": pages.dtype == torch.float32,
        **LAUNCH,
    }
