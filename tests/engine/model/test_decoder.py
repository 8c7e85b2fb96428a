"""Each family's logits and greedy tokens are those of transformers in fp32, with every unwritten page full of NaN."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from pagoda_engine.model.interface import SequenceChunk
from tests.engine.model.runners import generate, make_runner, page_bytes
from tests.support.checkpoints import FAMILIES, tiny_checkpoint

LLAMA3_ROPE = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((family, {}) for family in FAMILIES),
    ("llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    ("llama", {"num_key_value_heads": 1, "head_dim": 32}),
    ("llama", {"rope_scaling": LLAMA3_ROPE}),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    ("llama", {"rope_parameters": LLAMA3_ROPE | {"rope_theta": 5000.0}, "rope_theta": None}),
    ("mistral", {"sliding_window": 20}),
    ("qwen2", {"rope_theta": 1000000.0}),
]
LENGTH = 150


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    return torch.randint(0, 300, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()


def oracle(folder: Path) -> Any:
    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@pytest.mark.parametrize(("family", "overrides"), VARIANTS, ids=str)
@pytest.mark.filterwarnings("ignore")  # transformers' own notices about configs of older shape
def test_logits_and_greedy_tokens_equal_transformers(
    tmp_path: Path, tokens: list[int], family: str, overrides: dict[str, Any]
) -> None:
    folder = tiny_checkpoint(tmp_path, family, **overrides)
    model = oracle(folder)
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0]
        continued = model.generate(
            torch.tensor([tokens[:40]]), max_new_tokens=12, min_new_tokens=12, do_sample=False, eos_token_id=None
        )[0, 40:]
    pages = list(range(9, -1, -1))
    for exact in (False, True):
        runner = make_runner(folder, exact=exact)
        chunks = [SequenceChunk(tokens[a:b], a, pages, None) for a, b in ((0, 37), (37, 38), (38, LENGTH))]
        logits = torch.cat([runner.logits(chunk) for chunk in chunks])
        assert (logits - expected).abs().max().item() < 1e-3
        assert generate(runner, tokens[:40], list(range(20, 30)), 12) == continued.tolist()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("block_tokens", [8, 16, 24, 64])
def test_block_size_does_not_change_the_logits(
    tmp_path: Path, tokens: list[int], exact: bool, block_tokens: int
) -> None:
    folder = tiny_checkpoint(tmp_path, "llama")
    runner = make_runner(folder, exact=exact, block_tokens=block_tokens)
    reference = make_runner(folder, exact=exact)
    chunks = [(tokens[:50], 0), (tokens[50:], 50)]
    pages = list(range(-(-LENGTH // block_tokens)))
    for ids, start in chunks:
        ours = runner.logits(SequenceChunk(ids, start, pages, None))
        assert (ours - reference.logits(SequenceChunk(ids, start, range(10), None))).abs().max().item() < 1e-4


@pytest.mark.parametrize("exact", [False, True])
def test_pages_of_others_are_neither_read_nor_written(tmp_path: Path, tokens: list[int], exact: bool) -> None:
    runner = make_runner(tiny_checkpoint(tmp_path, "qwen2"), exact=exact)
    before = page_bytes(runner, 30)
    logits = runner.logits(SequenceChunk(tokens[:21], 0, [3, 8], None))
    assert not logits.isnan().any()  # every page but these two, and the end of page 8, is NaN
    assert {page for page in range(runner.facts.num_pages) if page_bytes(runner, page) != before} == {3, 8}


def test_bfloat16_stays_near_fp32(tmp_path: Path, tokens: list[int]) -> None:
    folder = tiny_checkpoint(tmp_path, "qwen3")
    wide, narrow = make_runner(folder, exact=False), make_runner(folder, exact=False, kv_dtype="BFloat16")
    assert narrow.facts.payload_bytes * 2 == wide.facts.payload_bytes
    chunk = SequenceChunk(tokens, 0, range(10), None)
    difference = (wide.logits(chunk) - narrow.logits(chunk)).abs()
    assert difference.mean().item() < 0.1
