"""Pages of every kind that a codec may meet, and what a codec makes of them."""

import math

import torch
from hypothesis import strategies as st

from pagoda_engine.model.codecs.interface import PAGE_DTYPES, Codec, PageShape
from pagoda_engine.model.codecs.registry import CODECS, make_codec

LOSSY = sorted(name for name in CODECS if name != "Raw")
DTYPES = sorted(PAGE_DTYPES)
SHAPE = (2, 2, 4, 16)  # layers, heads, tokens, channels
KINDS = ("plain", "zeros", "tiny", "huge", "outliers", "offsets", "constant", "grid", "neighbours", "bits")


def codec_of(name: str, kv_dtype: str, shape: tuple[int, int, int, int] = SHAPE) -> Codec:
    return make_codec(name, PageShape(*shape, PAGE_DTYPES[kv_dtype]))


def page_of(kind: str, seed: int, kv_dtype: str, shape: tuple[int, int, int, int] = SHAPE) -> torch.Tensor:
    """Return finite pages (1, layers, 2, heads, tokens, channels)."""
    layers, heads, tokens, channels = shape
    chance = torch.Generator().manual_seed(seed)
    sizes = (1, layers, 2, heads, tokens, channels)
    values = torch.randn(sizes, generator=chance)
    by_channel = torch.randint(-60, 60, (*sizes[:-2], 1, channels), generator=chance).float()
    if kind == "zeros":
        values[torch.rand(sizes, generator=chance) < 0.9] = 0.0
        values *= torch.randint(0, 2, (*sizes[:-2], 1, 1), generator=chance)
    elif kind == "tiny":
        values = values * torch.exp2(by_channel / 2 - 110)
    elif kind == "huge":
        values = values * torch.exp2(by_channel.abs() / 2 + 96)
        values[0, 0, 0, 0, 0, 0] = torch.finfo(torch.bfloat16).max
    elif kind == "outliers":
        values = values * torch.exp2(by_channel)
    elif kind == "offsets":
        values = values * 2.0 ** -(seed % 14) + by_channel
    elif kind == "constant":
        values = by_channel.expand(sizes).clone()
    elif kind == "grid":
        values = (values * 4).round() / 4
    elif kind == "neighbours":  # a few spacings of bf16 apart, across a power of two
        steps = torch.randint(0, 1 + seed % 40, sizes, generator=chance) - seed % 23
        values = (1.0 + steps * 2.0**-8) * torch.exp2((by_channel / 8).floor()) * (-1.0) ** (seed % 2)
    elif kind == "bits":
        bits = torch.randint(-(2**31), 2**31, sizes, generator=chance).int()
        values = bits.view(torch.float32)
        values[~values.isfinite()] = -0.0
    result = values.to(PAGE_DTYPES[kv_dtype])
    result[~result.isfinite()] = -0.0
    return result


pages = st.tuples(st.sampled_from(KINDS), st.integers(0, 2**32 - 1))
floats_around_one = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=8).filter(
    lambda values: all(math.isfinite(value) for value in values)
)


def encoded(codec: Codec, page: torch.Tensor) -> torch.Tensor:
    """Return payloads; what was in the buffer before must not matter."""
    payloads = torch.full((page.shape[0], codec.payload_bytes), 0xA5, dtype=torch.uint8)
    codec.encode(page, payloads)
    return payloads


def decoded(codec: Codec, payloads: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    result = torch.full_like(like, -7.0)
    codec.decode(payloads, result)
    return result
