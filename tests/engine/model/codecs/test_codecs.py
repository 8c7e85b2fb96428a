"""What every codec keeps: the same bytes everywhere, stable going up and down, whole, loud about what is broken."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pagoda_engine.model.codecs.interface import LARGEST, PAGE_DTYPES, PageShape
from pagoda_engine.model.codecs.registry import CODECS, make_codec
from pagoda_engine.model.errors import UnsupportedModelError
from pagoda_protocol import records
from tests.engine.model.codecs.pages import (
    DTYPES,
    KINDS,
    LOSSY,
    SHAPE,
    codec_of,
    decoded,
    encoded,
    floats_around_one,
    page_of,
    pages,
)

each_codec = pytest.mark.parametrize("name", sorted(CODECS))
each_lossy = pytest.mark.parametrize("name", LOSSY)
each_dtype = pytest.mark.parametrize("kv_dtype", DTYPES)


def test_every_codec_of_the_record_header_is_there() -> None:
    assert set(CODECS) == set(records.CODECS)


@each_codec
@each_dtype
@settings(max_examples=150, deadline=None)
@given(page=pages)
@example(page=("neighbours", 22))
@example(page=("huge", 1))
@example(page=("bits", 5))
def test_a_block_that_goes_up_and_down_again_is_the_same_block(name: str, kv_dtype: str, page: tuple[str, int]) -> None:
    codec = codec_of(name, kv_dtype)
    payload = encoded(codec, page_of(*page, kv_dtype))
    again = decoded(codec, payload, page_of(*page, kv_dtype))
    assert again.isfinite().all()
    assert torch.equal(encoded(codec, again), payload)


@each_lossy
@each_dtype
@settings(max_examples=100, deadline=None)
@given(values=floats_around_one, seed=st.integers(0, 2**32 - 1))
def test_it_stays_the_same_block_whatever_few_values_it_is_made_of(
    name: str, kv_dtype: str, values: list[float], seed: int
) -> None:
    chance = torch.Generator().manual_seed(seed)
    some = torch.tensor(values).to(PAGE_DTYPES[kv_dtype]).nan_to_num(0.0)
    page = some[torch.randint(0, len(values), page_of("zeros", 0, kv_dtype).shape, generator=chance)]
    codec = codec_of(name, kv_dtype)
    payload = encoded(codec, page)
    assert torch.equal(encoded(codec, decoded(codec, payload, page)), payload)


@each_lossy
@pytest.mark.parametrize("base", [1.0, -1.0, 1.75, -1.984375])
def test_bf16_values_a_few_spacings_apart_stay_whatever_their_ends(name: str, base: float) -> None:
    """The narrow groups of Int4, all of them: ends up to 40 spacings apart, on both sides of a power of two."""
    spacing = 2.0**-8
    codec = codec_of(name, "BFloat16", (1, 1, 41, 16))
    for low in range(-20, 4):
        page = page_of("zeros", 0, "BFloat16", (1, 1, 41, 16))
        steps = torch.arange(41)[:, None].minimum(torch.arange(16)[None, :] * 2 + 10)  # (tokens, channels)
        page[:] = base + (low + steps) * spacing
        payload = encoded(codec, page)
        assert torch.equal(encoded(codec, decoded(codec, payload, page)), payload), low


@each_codec
@each_dtype
def test_bytes_do_not_depend_on_batch_threads_or_strides(name: str, kv_dtype: str) -> None:
    shape = (6, 3, 16, 64)  # large enough for torch to use its threads
    codec = codec_of(name, kv_dtype, shape)
    batch = torch.cat([page_of(kind, 3, kv_dtype, shape) for kind in KINDS])
    together = encoded(codec, batch)
    threads = torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        alone = torch.cat([encoded(codec, batch[at : at + 1]) for at in range(len(batch))])
        assert torch.equal(alone, together)
    torch.set_num_threads(threads)
    wide = torch.zeros(len(batch), codec.payload_bytes + 64, dtype=torch.uint8)
    codec.encode(batch, wide[:, : codec.payload_bytes])
    assert torch.equal(wide[:, : codec.payload_bytes], together)
    assert not wide[:, codec.payload_bytes :].any()
    assert torch.equal(decoded(codec, wide[:, : codec.payload_bytes], batch), decoded(codec, together, batch))


@each_codec
def test_threads_do_not_share_their_work_space(name: str) -> None:
    shape = (4, 2, 16, 64)
    codec = codec_of(name, "BFloat16", shape)
    some = [page_of(kind, 9, "BFloat16", shape) for kind in KINDS] * 8
    expected = [encoded(codec, page) for page in some]
    with ThreadPoolExecutor(4) as executor:
        assert all(map(torch.equal, executor.map(lambda page: encoded(codec, page), some), expected))


@each_codec
@each_dtype
def test_every_byte_is_written_and_sizes_are_whole_words(name: str, kv_dtype: str) -> None:
    for shape in ((1, 1, 1, 16), (2, 3, 5, 48), (3, 1, 7, 32)):
        codec = codec_of(name, kv_dtype, shape)
        assert codec.payload_bytes % 8 == 0
        page = page_of("plain", 1, kv_dtype, shape)
        first = torch.full((1, codec.payload_bytes), 0x00, dtype=torch.uint8)
        second = torch.full((1, codec.payload_bytes), 0xFF, dtype=torch.uint8)
        codec.encode(page, first)
        codec.encode(page, second)
        assert torch.equal(first, second)


def test_payloads_are_the_same_with_fewer_instructions(tmp_path: Path) -> None:
    """torch chooses its kernels when it is loaded: without AVX-512 and AVX2 in a process of its own."""
    shape = (4, 2, 16, 64)
    every = {
        (name, kv_dtype): torch.cat([page_of(kind, seed, kv_dtype, shape) for kind in KINDS for seed in range(2)])
        for name in CODECS
        for kv_dtype in DTYPES
    }
    torch.save(every, tmp_path / "pages")
    for capability in ("default", "avx2"):
        subprocess.run(
            [sys.executable, "-c", _ENCODE_ALL, str(tmp_path)], env=os.environ | {"ATEN_CPU_CAPABILITY": capability},
            timeout=120, check=True,
        )  # fmt: skip
        found = torch.load(tmp_path / "found")
        for (name, kv_dtype), batch in every.items():
            codec = codec_of(name, kv_dtype, shape)
            payloads = encoded(codec, batch)
            assert torch.equal(found[name, kv_dtype][0], payloads), (capability, name, kv_dtype)
            assert torch.equal(found[name, kv_dtype][1], decoded(codec, payloads, batch)), (capability, name, kv_dtype)


_ENCODE_ALL = """
import os, sys, torch
from tests.engine.model.codecs.pages import codec_of, decoded, encoded
assert torch.backends.cpu.get_cpu_capability() == os.environ["ATEN_CPU_CAPABILITY"].upper()
found = {}
for (name, kv_dtype), batch in torch.load(sys.argv[1] + "/pages").items():
    codec = codec_of(name, kv_dtype, (4, 2, 16, 64))
    payloads = encoded(codec, batch)
    found[name, kv_dtype] = payloads, decoded(codec, payloads, batch)
torch.save(found, sys.argv[1] + "/found")
"""


@each_lossy
@each_dtype
@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_a_page_with_something_not_finite_comes_back_as_nan_and_spoils_no_other(
    name: str, kv_dtype: str, broken: float
) -> None:
    codec = codec_of(name, kv_dtype)
    page = page_of("plain", 4, kv_dtype)
    batch = torch.cat([page, page])
    batch[1, 1, 0, 1, 2, 3] = broken
    payloads = encoded(codec, batch)
    result = decoded(codec, payloads, batch)
    assert torch.equal(payloads[:1], encoded(codec, page))
    assert result[1].isnan().all()
    assert torch.equal(encoded(codec, result), payloads)


@each_lossy
@each_dtype
def test_values_beyond_any_sense_are_held(name: str, kv_dtype: str) -> None:
    page = page_of("plain", 4, kv_dtype)
    page[0, 0, 0, 0, 0, 0], page[0, 0, 1, 0, 0, 0] = 2.0**126, -(2.0**126)
    result = decoded(codec_of(name, kv_dtype), encoded(codec_of(name, kv_dtype), page), page)
    assert result.abs().max() <= LARGEST * 1.04  # Nvfp4 rounds up to a scale
    assert result[0, 0, 0, 0, 0, 0] >= LARGEST * 0.9


@each_lossy
@each_dtype
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_value_is_further_off_than_its_codec_allows(name: str, kv_dtype: str, seed: int) -> None:
    page = page_of("plain", seed, kv_dtype)
    codec = codec_of(name, kv_dtype)
    error = (decoded(codec, encoded(codec, page), page).float() - page.float()).abs()
    values = page.float()
    keys, tokens = values[:, :, 0], values[:, :, 1]
    rounding = 2.0**-8 * values.abs().amax()
    if name in ("Int8", "Int4"):
        width = {"Int8": lambda x, d: 2 * x.abs().amax(d, keepdim=True) / 254, "Int4": _spread}[name]
        assert (error[:, :, 0] <= width(keys, -2) / 2 + rounding).all()
        assert (error[:, :, 1] <= width(tokens, -1) / 2 + rounding).all()
    elif name == "Fp8":
        assert (error <= values.abs() / 16 + 2.0**-16 * values.abs().amax((-1, -2), keepdim=True)).all()
    else:
        peaks = values.unflatten(-1, (-1, 16)).abs().amax(-1, keepdim=True)
        assert (error.unflatten(-1, (-1, 16)) <= peaks / 6 * 1.07).all()


def test_nvfp4_rounds_what_is_next_to_a_half_to_its_own_side() -> None:
    """A half goes away from zero; one spacing below it a value goes down, and where that is zero it keeps no sign."""
    codec = codec_of("Nvfp4", "Float32", (1, 1, 1, 16))
    halves = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    below = torch.nextafter(halves, torch.zeros(()))
    for values, expected in (
        (halves, [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]),
        (below, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0]),
    ):
        page = torch.zeros(1, 1, 2, 1, 1, 16)
        page[..., 0] = 6.0
        page[..., 1:8], page[..., 8:15] = values, -values
        result = decoded(codec, encoded(codec, page), page)[0, 0, 0, 0, 0]
        assert torch.equal(result[1:8], torch.tensor(expected))
        assert torch.equal(result[8:15], -torch.tensor(expected))


def _spread(values: torch.Tensor, dim: int) -> torch.Tensor:
    return (values.amax(dim, keepdim=True) - values.amin(dim, keepdim=True)) / 15


@pytest.mark.parametrize(
    ("name", "head_dim", "message"),
    [
        ("Int4", 15, "cache.codec Int4 needs a head_dim that is a multiple of 2; this model's is 15"),
        ("Nvfp4", 72, "cache.codec Nvfp4 needs a head_dim that is a multiple of 16; this model's is 72"),
        ("Zstd", 64, "cache.codec 'Zstd'; supported are Raw, Int8, Int4, Fp8, Nvfp4"),
    ],
)
def test_a_shape_that_cannot_be_packed_is_refused_by_the_name_of_the_field(
    name: str, head_dim: int, message: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        make_codec(name, PageShape(2, 2, 16, head_dim, torch.float32))


@each_dtype
def test_int8_takes_heads_of_any_width(kv_dtype: str) -> None:
    codec = codec_of("Int8", kv_dtype, (1, 1, 3, 7))
    page = page_of("plain", 1, kv_dtype, (1, 1, 3, 7))
    payload = encoded(codec, page)
    assert torch.equal(encoded(codec, decoded(codec, payload, page)), payload)


def test_sizes_are_the_codes_and_their_measures() -> None:
    """SmolLM2-135M, 16 tokens: 184,320 values, 90 heads' planes of K and of V."""
    shape = (30, 3, 16, 64)
    assert SHAPE[-1] == 16
    assert {name: codec_of(name, "BFloat16", shape).payload_bytes for name in CODECS} == {
        "Raw": 184_320 * 2,
        "Int8": 184_320 + 90 * (64 + 16) * 2,
        "Int4": 184_320 // 2 + 90 * (64 + 16) * 4,
        "Fp8": 184_320 + 184,  # 180 exponents
        "Nvfp4": 184_320 // 2 + 184_320 // 16 + 180 * 4,
    }
    assert all(
        codec_of(name, "Float32", shape).payload_bytes == codec_of(name, "BFloat16", shape).payload_bytes
        for name in LOSSY
    )
