"""Runners over tiny checkpoints, and what tests ask of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pagoda_engine.model.checkpoint import open_checkpoint
from pagoda_engine.model.interface import Sampling, SequenceChunk
from pagoda_engine.model.location import locate
from pagoda_engine.model.runner import TorchModelRunner

GREEDY = Sampling()


def make_runner(folder: Path, *, exact: bool, num_tokens: int = 1024, **settings: Any) -> TorchModelRunner:
    """Open the checkpoint in `folder` with room for `num_tokens` tokens of KV; every page starts as NaN."""
    checkpoint = open_checkpoint(locate(path=folder))
    block_tokens = settings.pop("block_tokens", 16)
    itemsize = 2 if settings.get("kv_dtype") == "BFloat16" else 4
    runner = TorchModelRunner(
        checkpoint,
        kv_memory_bytes=checkpoint.config.kv_values_per_token * itemsize * num_tokens,
        block_tokens=block_tokens,
        exact=exact,
        **{"kv_dtype": "Auto", "threads": 1} | settings,
    )
    poison_all(runner)
    return runner


def poison_all(runner: TorchModelRunner) -> None:
    for page in range(runner.facts.num_pages):
        runner.kv.poison(page)


def page_bytes(runner: TorchModelRunner, page: int) -> bytes:
    buffer = bytearray(runner.facts.payload_bytes)
    runner.copy_out(page, memoryview(buffer))
    return bytes(buffer)


def generate(runner: TorchModelRunner, prompt: Sequence[int], pages: Sequence[int], count: int) -> list[int]:
    """Return `count` greedy tokens after `prompt`, computed whole and then token by token."""
    tokens = list(prompt)
    (token,) = runner.run([SequenceChunk(tokens, 0, pages, GREEDY)])
    assert token is not None
    tokens.append(token)
    while len(tokens) < len(prompt) + count:
        (token,) = runner.run([SequenceChunk(tokens[-1:], len(tokens) - 1, pages, GREEDY)])
        assert token is not None
        tokens.append(token)
    return tokens[len(prompt) :]
