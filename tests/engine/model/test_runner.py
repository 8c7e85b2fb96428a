"""What the scheduler may rely on, and what a wrong setting is told."""

from pathlib import Path

import pytest

from pagoda_engine.model.checkpoint import open_checkpoint
from pagoda_engine.model.errors import CapacityError, UnsupportedModelError
from pagoda_engine.model.interface import Sampling, SequenceChunk
from pagoda_engine.model.layout import Placement, bucket, place_rows
from pagoda_engine.model.location import locate
from pagoda_engine.model.runner import TorchModelRunner, resolve_kv_dtype
from tests.engine.model.runners import GREEDY, generate, make_runner
from tests.support.checkpoints import tiny_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")


def test_a_token_comes_only_where_one_is_wanted(folder: Path) -> None:
    runner = make_runner(folder, exact=False)
    first, second, third = runner.run(
        [
            SequenceChunk([1, 2, 3], 0, [0], GREEDY),
            SequenceChunk([4, 5], 0, [1], None),
            SequenceChunk([6], 0, [2], Sampling(temperature=1.0, seed=3)),
        ]
    )
    assert first is not None
    assert second is None
    assert third is not None
    assert runner.run([]) == []


def test_greedy_tokens_are_the_same_in_a_batch_and_alone(folder: Path) -> None:
    runner = make_runner(folder, exact=False)
    prompts = [[5, 6, 7], list(range(40, 75)), [250]]
    alone = [generate(runner, prompt, range(4), 10) for prompt in prompts]
    tables = [range(10 + 4 * at, 14 + 4 * at) for at in range(3)]
    done = [list(prompt) for prompt in prompts]
    for _ in range(10):
        chunks = []
        for ids, prompt, table in zip(done, prompts, tables, strict=True):
            start = 0 if len(ids) == len(prompt) else len(ids) - 1
            chunks.append(SequenceChunk(ids[start:], start, table, GREEDY))
        for ids, token in zip(done, runner.run(chunks), strict=True):
            assert token is not None
            ids.append(token)
    assert [ids[len(prompt) :] for ids, prompt in zip(done, prompts, strict=True)] == alone


def test_facts_name_what_makes_kv_bytes_comparable(folder: Path, tmp_path: Path) -> None:
    runner = make_runner(folder, exact=True, num_tokens=100)
    facts = runner.facts
    assert (facts.block_tokens, facts.num_pages, facts.kv_dtype, facts.max_position) == (16, 6, "Float32", 4096)
    assert facts.payload_bytes == 2 * 2 * 2 * 16 * 16 * 4
    other = make_runner(tiny_checkpoint(tmp_path, "llama", seed=1), exact=True).facts
    assert other.config_digest == facts.config_digest
    assert other.weights_digest != facts.weights_digest
    window = make_runner(tiny_checkpoint(tmp_path, "llama", rms_norm_eps=1e-6), exact=True).facts
    assert window.config_digest != facts.config_digest


def test_progress_ends_each_stage_at_one(folder: Path) -> None:
    seen: dict[str, float] = {}
    make_runner(folder, exact=True, progress=seen.__setitem__)
    assert seen == {"digest": 1.0, "weights": 1.0, "warm-up": 1.0}


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"kv_memory_bytes": 100}, CapacityError, "hold no block of 16 tokens"),
        ({"max_model_tokens": 2049}, CapacityError, "holds 2048 tokens of this model; give .*maxModelTokens from 2049"),
        ({"kv_memory_bytes": 64 << 20, "max_model_tokens": 5000}, UnsupportedModelError, "more than the 4096"),
        ({"kv_dtype": "BFloat16", "exact": True}, UnsupportedModelError, "exact mode needs"),
        ({"kv_dtype": "Fp8"}, UnsupportedModelError, "supported are Auto, Float32, BFloat16"),
    ],
)
def test_settings_that_cannot_hold_are_refused(
    folder: Path, settings: dict[str, object], error: type[Exception], message: str
) -> None:
    base = {"kv_memory_bytes": 1 << 20, "block_tokens": 16, "kv_dtype": "Auto", "exact": False, "threads": 1}
    with pytest.raises(error, match=message):
        TorchModelRunner(open_checkpoint(locate(path=folder)), **(base | settings))


def test_auto_resolves_from_the_device_and_never_from_timing() -> None:
    assert resolve_kv_dtype("Auto", device_type="cpu", exact=False) == "Float32"
    assert resolve_kv_dtype("Auto", device_type="cuda", exact=False) == "BFloat16"
    assert resolve_kv_dtype("Auto", device_type="cuda", exact=True) == "Float32"
    assert resolve_kv_dtype("BFloat16", device_type="cpu", exact=False) == "BFloat16"


def chunk(start: int, length: int) -> SequenceChunk:
    return SequenceChunk([0] * length, start, range(64), None)


def test_packed_rows_follow_one_another_and_aligned_ones_stand_at_their_position() -> None:
    chunks = [chunk(5, 3), chunk(20, 30), chunk(0, 1)]
    packed = place_rows(chunks, exact=True, placement=Placement.PACKED)
    assert (packed.first_rows, packed.num_rows) == ((0, 3, 33), 48)
    aligned = place_rows(chunks, exact=True, placement=Placement.ALIGNED)
    assert (aligned.first_rows, aligned.num_rows) == ((5, 20, 64), 80)
    assert [bucket(rows) for rows in (1, 2, 3, 7, 8, 9, 17, 256)] == [1, 2, 4, 8, 8, 16, 32, 256]
