"""What the scheduler and the model say to one another. No tensor crosses this line, and no torch is imported here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Sampling:
    """What the model needs to choose a token. The noise is a pure function of (seed, position, token id)."""

    temperature: float = 0.0  # 0 is greedy: the highest logit, ties to the lowest id
    top_p: float = 1.0  # keep the smallest set of most likely tokens that holds this probability, at least one
    top_k: int = 0  # keep this many of the most likely tokens; 0 is all
    seed: int = 0  # taken modulo 2**64


@dataclass(frozen=True)
class SequenceChunk:
    """Consecutive tokens of one sequence to compute in this step."""

    tokens: Sequence[int]  # token ids at positions start .. start+len-1, at least one
    start: int  # position of the first; KV of [0, start) is already in pages
    pages: Sequence[int]  # page table covering positions [0, start+len), in order
    sampling: Sampling | None  # None: no token wanted (the chunk does not reach the end of the prompt)


@dataclass(frozen=True)
class ModelFacts:
    """What never changes while a model is loaded."""

    block_tokens: int  # tokens per block
    payload_bytes: int  # bytes of one block below the device, all layers, as its codec writes them
    num_pages: int  # pages on the device, ids 0 .. num_pages-1
    vocab_size: int
    max_position: int  # positions the model was made for: 0 .. max_position-1
    kv_dtype: str  # Float32 | BFloat16, resolved
    codec: str  # Raw | Int8 | …: how blocks are written below the device
    codec_revision: int  # raised whenever the codec writes other bytes
    config_digest: str  # hex SHA-256 over every config field the decoder reads
    weights_digest: str  # hex SHA-256 over the checkpoint's bytes


class ModelRunner(Protocol):
    """Computes steps over paged KV. One thread calls `run`; the copies may be called from any thread.

    A page that is being copied must not be in the page table of a running chunk that writes it.
    """

    facts: ModelFacts

    def run(self, chunks: Sequence[SequenceChunk]) -> list[int | None]:
        """Compute one step; return one token id per chunk, None where no token was wanted.

        When it returns, the KV of every chunk's tokens is written. A token sampled after `start + len(tokens)`
        tokens has that number as its noise position.
        """

    def copy_out(self, page: int, destination: memoryview) -> None:
        """Encode one page into a writable buffer of exactly `payload_bytes`."""

    def copy_in(self, page: int, source: memoryview) -> None:
        """Fill one page from a buffer of exactly `payload_bytes` that `copy_out` wrote, here or on an equal engine."""
