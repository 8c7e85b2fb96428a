"""A model whose KV is checkable, and the plain reference of what it generates.

The KV at position p is a running hash of the tokens up to p; the next token mixes the hashes of *all* positions as they
are read from the pages. So one stale, foreign or misordered block changes the output, and before that `run` compares
every position it is about to read with what the request's own tokens say.
"""

import struct
from collections.abc import Callable, Iterable, Sequence

from pagoda_engine.core.engine import Engine
from pagoda_engine.core.request import NewRequest, Request
from pagoda_engine.model.interface import ModelFacts, SequenceChunk

BLOCK_TOKENS = 4
VOCABULARY = 50
_MASK = 2**64 - 1
_POISON = 0xDD


def running_hashes(tokens: Iterable[int]) -> list[int]:
    hashes, value = [], 0x9E3779B97F4A7C15
    for token in tokens:
        value = ((value ^ (token + 1)) * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & _MASK
        value ^= value >> 29
        hashes.append(value)
    return hashes


def next_token(hashes: Sequence[int], seed: int) -> int:
    mixed = seed
    for position, value in enumerate(hashes):
        mixed = (mixed + value * (2 * position + 1)) & _MASK
    return (mixed >> 17) % VOCABULARY


def reference(request: NewRequest) -> tuple[list[int], str]:
    """What the request must generate, whatever else happens in the engine."""
    tokens = list(request.prompt)
    generated: list[int] = []
    while True:
        token = next_token(running_hashes(tokens), request.sampling.seed)
        tokens.append(token)
        generated.append(token)
        if token in request.stop_token_ids:
            return generated, "stop"
        if len(generated) == request.max_tokens:
            return generated, "length"


class OracleViolation(BaseException):
    """No `Exception`: the engine must not be able to handle it."""


class OracleRunner:
    """Checks that what it reads is what the request's tokens say, and that nobody touches a page nobody holds."""

    def __init__(self, num_pages: int) -> None:
        self.facts = ModelFacts(
            block_tokens=BLOCK_TOKENS,
            payload_bytes=8 * BLOCK_TOKENS,
            num_pages=num_pages,
            vocab_size=VOCABULARY,
            max_position=10_000,
            kv_dtype="Float32",
            codec="Raw",
            codec_revision=1,
            config_digest="0" * 64,
            weights_digest="0" * 64,
        )
        self.engine: Engine | None = None
        self.before_run: Callable[[Sequence[SequenceChunk]], None] = lambda chunks: None
        self.num_computed_tokens = 0
        self.steps: list[list[int]] = []  # chunk sizes of each step
        self._pages = [bytearray([_POISON]) * (8 * BLOCK_TOKENS) for _ in range(num_pages)]

    def watch(self, engine: Engine) -> None:
        self.engine = engine
        engine._residency.pages.on_free = self._poison

    def run(self, chunks: Sequence[SequenceChunk]) -> list[int | None]:
        self.before_run(chunks)
        try:
            return self._check_and_run(chunks)
        except AssertionError as error:
            raise OracleViolation(str(error)) from error

    def _check_and_run(self, chunks: Sequence[SequenceChunk]) -> list[int | None]:
        self.steps.append([len(chunk.tokens) for chunk in chunks])
        written = [page for chunk in chunks for page in chunk.pages[chunk.start // BLOCK_TOKENS :]]
        assert len(set(written)) == len(written), "two chunks of one step write the same page"
        return [self._run_one(chunk) for chunk in chunks]

    def copy_out(self, page: int, destination: memoryview) -> None:
        self._check_held(page)
        destination[:] = self._pages[page]

    def copy_in(self, page: int, source: memoryview) -> None:
        self._check_held(page)
        self._pages[page][:] = source

    def _run_one(self, chunk: SequenceChunk) -> int | None:
        request = self._request_of(chunk)
        stop = chunk.start + len(chunk.tokens)
        assert list(chunk.tokens) == request.tokens[chunk.start : stop]
        assert len(chunk.pages) == -(-stop // BLOCK_TOKENS)
        assert all(self._num_holders(page) > 0 for page in chunk.pages)
        hashes = running_hashes(request.tokens[:stop])
        read = [self._read(chunk.pages, position) for position in range(chunk.start)]
        assert read == hashes[: chunk.start], f"{request.request_id}: KV before {chunk.start} is not its own"
        for position in range(chunk.start, stop):
            self._write(chunk.pages, position, hashes[position])
        self.num_computed_tokens += len(chunk.tokens)
        if chunk.sampling is None:
            assert stop < len(request.tokens)
            return None
        assert stop == len(request.tokens)
        return next_token(read + hashes[chunk.start :], chunk.sampling.seed)

    def _request_of(self, chunk: SequenceChunk) -> Request:
        """The one that owns the page the chunk begins to write: nobody else may hold it."""
        assert self.engine is not None
        index = chunk.start // BLOCK_TOKENS
        assert all(self._num_holders(page) == 1 for page in chunk.pages[index:]), "a page is written that others hold"
        (owner,) = (request for request in self.engine._roster.running if chunk.pages[index] in request.pages[index:])
        return owner

    def _check_held(self, page: int) -> None:
        if self._num_holders(page) == 0:
            raise OracleViolation(f"page {page} is copied though nobody holds it")

    def _num_holders(self, page: int) -> int:
        assert self.engine is not None
        return self.engine._residency.pages.holders(page)

    def _read(self, pages: Sequence[int], position: int) -> int:
        return struct.unpack_from("<Q", self._pages[pages[position // BLOCK_TOKENS]], position % BLOCK_TOKENS * 8)[0]

    def _write(self, pages: Sequence[int], position: int, value: int) -> None:
        struct.pack_into("<Q", self._pages[pages[position // BLOCK_TOKENS]], position % BLOCK_TOKENS * 8, value)

    def _poison(self, page: int) -> None:
        self._pages[page][:] = bytes([_POISON]) * len(self._pages[page])
