"""`TorchModelRunner`: a checkpoint made ready to compute steps."""

import logging
from collections.abc import Sequence

import torch

from pagoda_engine.model.attention import PagedAttention
from pagoda_engine.model.checkpoint import Checkpoint, Progress
from pagoda_engine.model.codecs.registry import make_codec
from pagoda_engine.model.codecs.self_test import check_codec
from pagoda_engine.model.decoder import Decoder, Step
from pagoda_engine.model.errors import CapacityError, DeviceError, UnsupportedModelError
from pagoda_engine.model.interface import ModelFacts, Sampling, SequenceChunk
from pagoda_engine.model.invariance import choose_placement
from pagoda_engine.model.kv import KV_DTYPES, PagedKV, page_shape
from pagoda_engine.model.layout import Placement, RowLayout, bucket, place_rows
from pagoda_engine.model.linear import EXACT_ROWS
from pagoda_engine.model.sampling import sample

_log = logging.getLogger(__name__)


def resolve_kv_dtype(kv_dtype: str, *, device_type: str, exact: bool) -> str:
    """Return Float32 or BFloat16 for a setting that may be Auto. Pure: never timed, so that equal pods agree.

    Raises:
        UnsupportedModelError: an unknown name, or exact mode with anything but Float32.
    """
    if kv_dtype == "Auto":
        kv_dtype = "Float32" if device_type == "cpu" or exact else "BFloat16"
    if kv_dtype not in KV_DTYPES:
        raise UnsupportedModelError(f"KV dtype {kv_dtype!r}; supported are Auto, {', '.join(KV_DTYPES)}")
    if exact and kv_dtype != "Float32":
        raise UnsupportedModelError(f"exact mode needs KV dtype Float32 (or Auto), not {kv_dtype}")
    return kv_dtype


class TorchModelRunner:
    """Computes steps with torch; implements `ModelRunner`.

    Weights and activations have the KV's dtype, so that the namespace names the arithmetic too. `threads` is set for
    the whole process: results are equal between processes of one thread count on one type of machine.
    """

    facts: ModelFacts
    placement: Placement  # how exact mode places rows here; PACKED in fast mode

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        kv_memory_bytes: int,
        block_tokens: int,
        kv_dtype: str = "Auto",
        codec: str = "Raw",
        exact: bool,
        threads: int,
        device: str = "cpu",
        max_model_tokens: int | None = None,
        progress: Progress = lambda stage, share: None,
    ) -> None:
        """Load everything and compute a first step, so that no request pays for it.

        Raises:
            DeviceError: there is no such device, or it does not hold the KV memory.
            CapacityError: the KV memory holds no block, or not `max_model_tokens` tokens.
            UnsupportedModelError: a dtype, mode or codec that does not go together; more tokens than the model was
                made for.
            CodecError: the codec does not work here as it does elsewhere.
            CheckpointError: a weight is missing or has another shape.
        """
        torch.set_num_threads(threads)
        self._exact = exact
        self._device = torch.device(device)
        if self._device.type == "cuda" and not torch.cuda.is_available():
            raise DeviceError(
                "a GPU was asked for and torch can use none here: does the container have one, "
                f"and is the driver new enough for torch {torch.__version__}?"
            )
        config = checkpoint.config
        resolved = resolve_kv_dtype(kv_dtype, device_type=self._device.type, exact=exact)
        self._dtype = KV_DTYPES[resolved]
        shape = page_shape(config, block_tokens, self._dtype)
        check_codec(codec, resolved, self._device)
        block_codec = make_codec(codec, shape)
        if max_model_tokens is not None and max_model_tokens > config.max_position:
            raise UnsupportedModelError(
                f"spec.engine.limits.maxModelTokens: {max_model_tokens} is more than the {config.max_position} "
                "the model was made for"
            )
        num_pages = _num_pages(kv_memory_bytes, shape.page_bytes, block_tokens, max_model_tokens)
        self.facts = ModelFacts(
            block_tokens=block_tokens,
            payload_bytes=block_codec.payload_bytes,
            num_pages=num_pages,
            vocab_size=config.vocab_size,
            max_position=config.max_position,
            kv_dtype=resolved,
            codec=block_codec.name,
            codec_revision=block_codec.revision,
            config_digest=config.config_digest(),
            weights_digest=checkpoint.weights_digest(progress),
        )
        try:
            self.kv = PagedKV(shape, block_codec, num_pages=num_pages, device=self._device)
            with torch.inference_mode():
                self._decoder = Decoder(
                    checkpoint,
                    dtype=self._dtype,
                    device=self._device,
                    exact=exact,
                    num_positions=min(config.max_position, num_pages * block_tokens),
                    progress=progress,
                )
                self._attention = PagedAttention(config, self.kv, exact=exact, device=self._device)
                self.placement = Placement.PACKED
                if exact:
                    self.placement = choose_placement(self._decoder, dtype=self._dtype, device=self._device)
            self._warm_up(progress)
        except torch.OutOfMemoryError as error:
            text = "the GPU does not hold kvCache.memory beside the weights and what a step needs: lower it"
            _log.warning("torch says: %s", error)  # with numbers that differ at each try
            raise DeviceError(text) from error

    # ---- ModelRunner ----

    def run(self, chunks: Sequence[SequenceChunk]) -> list[int | None]:
        """Compute one step; see `ModelRunner.run`."""
        if not chunks:
            return []
        with torch.inference_mode():
            layout = place_rows(chunks, exact=self._exact, placement=self.placement)
            hidden = self._forward(chunks, layout)
            wanted = [index for index, chunk in enumerate(chunks) if chunk.sampling is not None]
            last_rows = [layout.first_rows[index] + len(chunks[index].tokens) - 1 for index in wanted]
            samplings = [sampling for chunk in chunks if (sampling := chunk.sampling) is not None]
            positions = [chunks[index].start + len(chunks[index].tokens) for index in wanted]
            result: list[int | None] = [None] * len(chunks)
            if wanted:
                for index, token in zip(
                    wanted, sample(self._logits(hidden, last_rows), samplings, positions), strict=True
                ):
                    result[index] = token
            return result

    def copy_out(self, page: int, destination: memoryview) -> None:
        """Encode one page; see `ModelRunner.copy_out`."""
        self.kv.copy_out(page, destination)

    def copy_in(self, page: int, source: memoryview) -> None:
        """Decode one page; see `ModelRunner.copy_in`."""
        self.kv.copy_in(page, source)

    # ---- tests' side ----

    def logits(self, chunk: SequenceChunk) -> torch.Tensor:
        """Compute a chunk and return fp32 logits at each of its positions, (len, vocab)."""
        with torch.inference_mode():
            layout = place_rows([chunk], exact=self._exact, placement=self.placement)
            hidden = self._forward([chunk], layout)
            first = layout.first_rows[0]
            return self._logits(hidden, range(first, first + len(chunk.tokens)))

    # ---- a step ----

    def _forward(self, chunks: Sequence[SequenceChunk], layout: RowLayout) -> torch.Tensor:
        return self._decoder.forward(self._step(chunks, layout), self.kv, self._attention)

    def _step(self, chunks: Sequence[SequenceChunk], layout: RowLayout) -> Step:
        tokens, positions = [0] * layout.num_rows, [0] * layout.num_rows
        used_rows: list[int] = []
        pages: list[int] = []
        block = self.facts.block_tokens
        for chunk, first in zip(chunks, layout.first_rows, strict=True):
            count, end = len(chunk.tokens), chunk.start + len(chunk.tokens)
            assert count > 0, "a chunk holds at least one token"
            assert len(chunk.pages) * block >= end, "the page table must cover the chunk"
            tokens[first : first + count] = chunk.tokens
            positions[first : first + count] = range(chunk.start, end)
            used_rows.extend(range(first, first + count))
            pages.extend(chunk.pages[position // block] for position in range(chunk.start, end))
        placed_positions = self._tensor(positions)
        rows = self._tensor(used_rows)
        offsets = placed_positions[rows] % block
        return Step(
            tokens=self._tensor(tokens),
            positions=placed_positions,
            used_rows=rows,
            token_index=self.kv.token_index(self._tensor(pages), offsets),
            plans=[
                self._attention.plan(chunk, first, self._dtype)
                for chunk, first in zip(chunks, layout.first_rows, strict=True)
            ],
        )

    def _tensor(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)

    def _logits(self, hidden: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        """Return logits of the rows wanted and no others."""
        if self._exact and self.placement is Placement.ALIGNED:
            # A tile of its own for each row, always in the first place.
            tiles = hidden.new_zeros(len(rows) * EXACT_ROWS, hidden.shape[1])
            tiles[::EXACT_ROWS] = hidden[self._tensor(rows)]
            return self._decoder.logits(tiles)[::EXACT_ROWS]
        padding = -len(rows) % EXACT_ROWS if self._exact else bucket(len(rows)) - len(rows)
        padded = self._tensor([*rows, *[rows[-1]] * padding])
        return self._decoder.logits(hidden[padded])[: len(rows)]

    def _warm_up(self, progress: Progress) -> None:
        """Compute a prompt and a decode on page 0, which nobody owns yet."""
        progress("warm-up", 0.0)
        greedy = Sampling()
        length = min(self.facts.block_tokens, self.facts.max_position)
        self.run([SequenceChunk([0] * length, 0, [0], greedy)])
        progress("warm-up", 0.5)
        self.run([SequenceChunk([0], length - 1, [0], greedy)])
        progress("warm-up", 1.0)


def _in_mebi(num_bytes: int) -> str:
    return f"{-(-num_bytes // 2**20)}Mi"


def _num_pages(kv_memory_bytes: int, page_bytes: int, block_tokens: int, max_model_tokens: int | None) -> int:
    num_pages = kv_memory_bytes // page_bytes
    if num_pages < 1:
        raise CapacityError(
            f"spec.engine.kvCache.memory: {kv_memory_bytes} bytes hold no block of {block_tokens} tokens; "
            f"one has {page_bytes} bytes"
        )
    if max_model_tokens is not None and num_pages * block_tokens < max_model_tokens:
        needed = -(-max_model_tokens // block_tokens) * page_bytes
        raise CapacityError(
            f"spec.engine.kvCache.memory: {_in_mebi(kv_memory_bytes)} holds {num_pages * block_tokens} tokens of this "
            f"model; give {_in_mebi(needed)}, or lower spec.engine.limits.maxModelTokens from {max_model_tokens}"
        )
    return num_pages
