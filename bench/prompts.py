"""Prompts of token ids, asking them, and the sizes of the model that the benches serve."""

import random
from collections.abc import Sequence

from tests.support.pods import Pods
from tests.support.program import Answer

BLOCK_TOKENS = 16
KV_BYTES_PER_TOKEN = 46080  # fp32: 30 layers, keys and values, 3 heads of 64
_VOCABULARY = range(1000, 40000)  # ordinary tokens, no control tokens


def unseen(chance: random.Random, length: int) -> list[int]:
    """Return a prompt that nobody has seen."""
    return [chance.choice(_VOCABULARY) for _ in range(length)]


def kv_memory(num_tokens: int) -> str:
    """Return the manifest's size of a device that holds so many tokens."""
    return f"{-(-num_tokens * KV_BYTES_PER_TOKEN >> 20)}Mi"


def mebibytes(num_tokens: float) -> str:
    """Return a manifest's size of a tier that holds about so many tokens."""
    return f"{int(num_tokens * KV_BYTES_PER_TOKEN) >> 20}Mi"


def reusable(num_tokens: int) -> int:
    """Return how many of a prompt's tokens can come from a cache at most: its last token is always computed, so the
    last block is never wholly reused."""
    return (num_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS


def ask(pods: Pods, pod: str, prompt: Sequence[int]) -> Answer:
    """Ask a pod's engine for two tokens; afterwards nothing is in flight there."""
    answer = pods.engine(pod).complete(prompt, max_tokens=2, ignore_eos=True)
    assert sum(answer.sources.values()) == len(prompt)
    pods.wait_idle(pod)
    return answer
