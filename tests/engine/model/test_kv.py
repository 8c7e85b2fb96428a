"""Pages are block-major, and moving one moves exactly its bytes."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pagoda_engine.model.codecs.registry import make_codec
from pagoda_engine.model.config import DecoderConfig
from pagoda_engine.model.kv import PagedKV, page_shape

CONFIG = DecoderConfig(
    hidden_size=32, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=8, intermediate_size=8, vocab_size=8,
    max_position=64, rms_norm_eps=1e-5, rope_theta=1e4,
)  # fmt: skip


def make(dtype: torch.dtype = torch.float32) -> PagedKV:
    shape = page_shape(CONFIG, 4, dtype)
    return PagedKV(shape, make_codec("Raw", shape), num_pages=5, device=torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_written_tokens_lie_where_the_format_says(dtype: torch.dtype) -> None:
    kv = make(dtype)
    pages, offsets = torch.tensor([3, 3, 1]), torch.tensor([0, 2, 3])
    values = torch.arange(3 * 4 * 8).view(3, 4, 8).to(dtype)
    kv.write(1, kv.token_index(pages, offsets), values)
    buffer = bytearray(kv.payload_bytes)
    kv.copy_out(3, memoryview(buffer))
    page = torch.frombuffer(buffer, dtype=dtype).view(3, 2, 2, 4, 8)  # layers, K/V, heads, tokens, head_dim
    assert torch.equal(page[1, :, :, 2].reshape(4, 8), values[1])
    assert page[0].count_nonzero() == page[2].count_nonzero() == 0
    gathered = kv.gather(1, kv.block_index(torch.tensor([1, 3])))  # (2, heads, 2 blocks of 4, head_dim)
    assert torch.equal(gathered[:, :, 3].reshape(4, 8), values[2])
    assert torch.equal(gathered[:, :, 4].reshape(4, 8), values[0])


def test_a_page_survives_a_round_trip_through_bytes() -> None:
    kv = make()
    content = np.random.default_rng(0).bytes(kv.payload_bytes)
    kv.copy_in(4, memoryview(content))
    result = bytearray(kv.payload_bytes)
    kv.copy_out(4, memoryview(result))
    assert bytes(result) == content
    kv.poison(4)
    kv.copy_out(4, memoryview(result))
    assert np.isnan(np.frombuffer(result, np.float32)).all()
    kv.copy_out(0, memoryview(result))
    assert not any(result)


def test_a_buffer_of_another_size_is_our_bug() -> None:
    kv = make()
    with pytest.raises(AssertionError):
        kv.copy_out(0, memoryview(bytearray(8)))


def test_a_page_is_two_times_layers_heads_tokens_head_dim() -> None:
    assert page_shape(CONFIG, 16, torch.float32).page_bytes == 2 * 3 * 2 * 16 * 8 * 4
    assert page_shape(CONFIG, 16, torch.bfloat16).page_bytes == 2 * 3 * 2 * 16 * 8 * 2


def test_copies_may_go_straight_into_a_mapped_file(tmp_path: Path) -> None:
    kv = make()
    kv.poison(2)
    mapped = np.memmap(tmp_path / "arena", np.uint8, "w+", shape=(kv.payload_bytes * 2,))
    kv.copy_out(2, memoryview(mapped)[kv.payload_bytes :])
    kv.copy_in(0, memoryview(mapped)[kv.payload_bytes :])
    result = bytearray(kv.payload_bytes)
    kv.copy_out(0, memoryview(result))
    assert np.isnan(np.frombuffer(result, np.float32)).all()
