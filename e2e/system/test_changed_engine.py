"""An engine that is changed finds nothing of what it was before: no wrong hit, no error, and old records make room.

One arena volume and one pool outlive every change (CASES E6, E14).
"""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.system.stories import eventually
from pagoda_protocol.pool.arguments import Command
from pagoda_sidecar.arena.layout import SUPERBLOCK_BYTES, unpack_superblock
from tests.support.pods import Pods, manifest, running_pods
from tests.support.program import Answer

PROMPT = "The stones of the old pier were numbered, and whoever mended it had to put each one back where it was. " * 2
BLOCK = 16


@pytest.fixture(scope="module")
def pods(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    document = manifest(
        source={"local": {"path": str(checkpoint)}}, kv_memory="12Mi", ram="32Mi", disk="64Mi", pool_memory="64Mi",
        max_model_tokens=1024, max_batch_tokens=64, max_sequences=8,
    )  # fmt: skip
    with running_pods(tmp_path_factory.mktemp("pods"), document, threads=1, exact=True) as running:
        yield running


def ask(pods: Pods, prompt: str = PROMPT) -> Answer:
    answer = pods.engine("chat-0").complete(prompt, max_tokens=8, ignore_eos=True)
    assert sum(answer.sources.values()) == answer.usage["prompt_tokens"]
    return answer


def reused(answer: Answer) -> int:
    return int(answer.usage["prompt_tokens"] - answer.sources["compute"])


def num_in_ram(pods: Pods, state: str = "sealed") -> float:
    """Blocks of the attached engine in RAM, or slots that hold none."""
    return pods.sidecar("chat-0").metric("pagoda_tier_blocks", tier="ram", state=state)


def num_slots(pods: Pods) -> int:
    """Blocks that the arena has room for, whosever they are."""
    argv = pods.sidecar("chat-0").command.argv
    with (Path(argv[argv.index("--volume") + 1]) / "arena").open("rb") as arena:
        return unpack_superblock(arena.read(SUPERBLOCK_BYTES))[1].num_slots


def with_flag(command: Command, flag: str, value: object) -> Command:
    """Return `command` with another value of a flag."""
    argv = list(command.argv)
    argv[argv.index(flag) + 1] = str(value)
    return replace(command, argv=tuple(argv))


def restart(pods: Pods, command: Command) -> None:
    """End the engine and start it by another command, over what its sidecar kept."""
    engine = pods.engine("chat-0")
    engine.stop()
    engine.command = command
    engine.start()
    engine.wait_ready()
    eventually(lambda: engine.metric("pagoda_tier_attached") == 1, "the engine never attached")


def flipped(checkpoint: Path, folder: Path) -> Path:
    """Return a copy whose weights differ in one bit."""
    copy = Path(shutil.copytree(checkpoint, folder / "flipped"))
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (copy / "model.safetensors").write_bytes(data)
    return copy


def bent(checkpoint: Path, folder: Path) -> Path:
    """Return a copy with another base of its rotary embedding, and the same weights."""
    copy = Path(shutil.copytree(checkpoint, folder / "bent"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"rope_theta": 20000.0}))
    return copy


CHANGES: dict[str, Callable[[Command, Path, Path], Command]] = {
    "weights": lambda command, model, folder: with_flag(command, "--model-path", flipped(model, folder)),
    "rope": lambda command, model, folder: with_flag(command, "--model-path", bent(model, folder)),
    "codec": lambda command, model, folder: with_flag(command, "--codec", "Int8"),
    "block size": lambda command, model, folder: with_flag(command, "--block-tokens", 32),
}


@pytest.mark.parametrize("change", CHANGES)
def test_e14_a_changed_engine_hits_nothing_old_and_fails_nothing(
    pods: Pods, checkpoint: Path, tmp_path: Path, change: str
) -> None:
    engine, sidecar = pods.engine("chat-0"), pods.sidecar("chat-0")
    original = engine.command
    prompt = f"{change}: {PROMPT}"
    cold = ask(pods, prompt)
    assert reused(ask(pods, prompt)) > 0
    for number in range(10):
        ask(pods, f"{change} {number}: {PROMPT}")
    eventually(lambda: pods.memcached_items() * BLOCK >= reused(cold) + BLOCK, "the pool was never filled")
    eventually(lambda: num_in_ram(pods) > 10 * cold.usage["prompt_tokens"] // BLOCK, "the RAM tier was never filled")
    try:
        restart(pods, CHANGES[change](original, checkpoint, tmp_path))
        assert reused(ask(pods, prompt)) == 0, "nothing of the old engine's"
        assert reused(ask(pods, prompt)) > 0, "but its own"
        pods.wait_idle("chat-0")
        num_own = 2 * cold.usage["prompt_tokens"] // BLOCK
        eventually(lambda: num_in_ram(pods, "free") >= num_slots(pods) - num_own, "old records hold their slots")
        assert sidecar.metric("pagoda_integrity_failures_total") == 0
        assert engine.metric("pagoda_requests_total", outcome="error") == 0
    finally:
        restart(pods, original)


def test_the_same_engine_started_again_does_hit(pods: Pods) -> None:
    cold = ask(pods, f"same: {PROMPT}")
    eventually(lambda: pods.sidecar("chat-0").metric("pagoda_leases") == 0, "a store never ended")

    def hits() -> bool:
        restart(pods, pods.engine("chat-0").command)
        again = ask(pods, f"same: {PROMPT}")
        assert again.text == cold.text
        return reused(again) > 0

    eventually(hits, "what it stored itself was never found again", 120)
