"""Exact mode: a block's KV, and the token after it, are functions of the tokens alone, bit for bit."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagoda_engine.model.interface import Sampling, SequenceChunk
from pagoda_engine.model.invariance import rows_are_independent
from pagoda_engine.model.layout import Placement
from pagoda_engine.model.runner import TorchModelRunner
from tests.engine.model.runners import make_runner, page_bytes, poison_all
from tests.support.checkpoints import FAMILIES, tiny_checkpoint

# Two layers of SmolLM2-135M: other kernels are chosen for it than for a tiny one (one layer would test no attention).
SMOLLM2_SHAPE = {
    "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "intermediate_size": 1536,
}  # fmt: skip
PAGES_PER_SEQUENCE = 16
BLOCK = 16
SEEDED = Sampling(temperature=0.8, top_p=0.95, top_k=50, seed=7)


def tokens_of(sequence: int, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(sequence)
    return torch.randint(0, 300, (length,), generator=generator).tolist()


def block_hashes(runner: TorchModelRunner, pages: list[int], length: int) -> list[str]:
    return [hashlib.sha256(page_bytes(runner, page)).hexdigest() for page in pages[: length // BLOCK]]


class Alone:
    """Computes a sequence in one chunk, alone; answers are remembered."""

    def __init__(self, runner: TorchModelRunner) -> None:
        self._runner = runner
        self._known: dict[tuple[int, int], tuple[list[str], int | None]] = {}

    def __call__(self, sequence: int, length: int) -> tuple[list[str], int | None]:
        key = (sequence, length)
        if key not in self._known:
            pages = list(range(PAGES_PER_SEQUENCE))
            (token,) = self._runner.run([SequenceChunk(tokens_of(sequence, length), 0, pages, SEEDED)])
            self._known[key] = (block_hashes(self._runner, pages, length), token)
        return self._known[key]


@pytest.fixture(scope="module", params=[*FAMILIES, "smollm2", "window", "aligned"])
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchModelRunner]:
    folder = tmp_path_factory.mktemp("model")
    if request.param == "smollm2":
        folder = tiny_checkpoint(folder, "llama", **SMOLLM2_SHAPE)
    elif request.param == "window":
        folder = tiny_checkpoint(folder, "mistral", sliding_window=37)
    elif request.param == "aligned":
        folder = tiny_checkpoint(folder, "llama")
    else:
        folder = tiny_checkpoint(folder, request.param)
    made = make_runner(folder, exact=True, threads=2, num_tokens=4 * PAGES_PER_SEQUENCE * BLOCK)
    if request.param == "aligned":
        made.placement = Placement.ALIGNED
    return made


@st.composite
def schedules(draw: st.DrawFn) -> list[tuple[int, list[int]]]:
    """Sequences as (length, lengths of their chunks)."""
    sequences = []
    for _ in range(draw(st.integers(1, 3))):
        length = draw(st.integers(1, PAGES_PER_SEQUENCE * BLOCK))
        cuts = sorted(draw(st.sets(st.integers(1, length), max_size=6)) | {length})
        sequences.append((length, [end - start for start, end in zip([0, *cuts], cuts, strict=False)]))
    return sequences


@settings(
    max_examples=12, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(schedule=schedules(), placing=st.randoms(use_true_random=False))
def test_kv_does_not_depend_on_chunks_batch_or_pages(
    runner: TorchModelRunner, schedule: list[tuple[int, list[int]]], placing: object
) -> None:
    alone = Alone(runner)
    expected = [alone(sequence, length) for sequence, (length, _) in enumerate(schedule)]
    poison_all(runner)
    pages = list(range(runner.facts.num_pages))
    placing.shuffle(pages)  # type: ignore[attr-defined]
    tables = [pages[at * PAGES_PER_SEQUENCE : (at + 1) * PAGES_PER_SEQUENCE] for at in range(len(schedule))]
    done = [0] * len(schedule)
    tokens: list[int | None] = [None] * len(schedule)
    pending = [list(chunks) for _, chunks in schedule]
    while any(pending):
        active = [at for at, chunks in enumerate(pending) if chunks]
        placing.shuffle(active)  # type: ignore[attr-defined]
        step = []
        for at in active:
            size = pending[at].pop(0)
            ids = tokens_of(at, schedule[at][0])[done[at] : done[at] + size]
            step.append(SequenceChunk(ids, done[at], tables[at], None if pending[at] else SEEDED))
            done[at] += size
        for at, token in zip(active, runner.run(step), strict=True):
            tokens[at] = token
    for at, (length, _) in enumerate(schedule):
        assert (block_hashes(runner, tables[at], length), tokens[at]) == expected[at]


def test_decoding_writes_the_same_kv_as_a_prefill(runner: TorchModelRunner) -> None:
    tokens, pages = tokens_of(5, 70), list(range(5))
    runner.run([SequenceChunk(tokens, 0, pages, None)])
    whole = block_hashes(runner, pages, 64)
    poison_all(runner)
    for at, token in enumerate(tokens):
        runner.run([SequenceChunk([token], at, pages, None)])
    assert block_hashes(runner, pages, 64) == whole


def test_a_prefix_may_come_from_another_runner_and_lie_in_other_pages(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path, "qwen3")
    first, second = (make_runner(folder, exact=True) for _ in range(2))
    tokens = tokens_of(1, 100)
    (expected,) = first.run([SequenceChunk(tokens, 0, range(7), SEEDED)])
    table = [20, 3, 11, 40, 5, 6, 7]
    for source, target in zip(range(4), table, strict=False):
        second.copy_in(target, memoryview(page_bytes(first, source)))
    (token,) = second.run([SequenceChunk(tokens[64:], 64, table, SEEDED)])
    assert token == expected
    assert block_hashes(second, table, 96) == block_hashes(first, list(range(7)), 96)


SUBPROCESS = """
import sys
from pathlib import Path
from tests.engine.model.test_invariance import block_hashes, tokens_of
from tests.engine.model.runners import make_runner
from pagoda_engine.model.interface import SequenceChunk
runner = make_runner(Path(sys.argv[1]), exact=True, threads=2)
runner.run([SequenceChunk(tokens_of(9, 200), 0, range(13), None)])
print(block_hashes(runner, list(range(13)), 200)[-1])
"""


def test_two_processes_compute_the_same_bytes(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path, "llama", **SMOLLM2_SHAPE)
    runner = make_runner(folder, exact=True, threads=2)
    runner.run([SequenceChunk(tokens_of(9, 120), 0, range(13), None)])
    runner.run([SequenceChunk(tokens_of(9, 200)[120:], 120, range(13), None)])
    command = [sys.executable, "-c", SUBPROCESS, str(folder)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, env=environment).stdout
    assert output.strip() == block_hashes(runner, list(range(13)), 200)[-1]


def test_rows_that_feel_their_place_or_their_neighbours_are_noticed() -> None:
    rows = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    places = torch.arange(16)[:, None]
    assert rows_are_independent(lambda x: x * 2, rows)
    assert not rows_are_independent(lambda x: x + 1e-6 * places, rows)
    assert not rows_are_independent(lambda x: x + x.mean(), rows)


def test_where_rows_are_not_independent_every_row_has_a_place_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pagoda_engine.model.invariance.rows_are_independent", lambda *_: False)
    folder = tiny_checkpoint(tmp_path, "llama")
    assert make_runner(folder, exact=True).placement is Placement.ALIGNED
