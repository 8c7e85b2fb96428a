"""Builds a `tokenizers.Tokenizer` from GGUF metadata, equal to the tokenizer.json the model was made with.

GGUF keeps vocabulary, merges and token types, and names the pre-tokenizer only (`tokenizer.ggml.pre`); its meaning is
fixed by llama.cpp's source. Another name than those below is refused: a wrong guess costs quality and shows nowhere.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from pagoda_engine.text.errors import TokenizerError

_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_SPACE = "▁"  # SentencePiece writes spaces as U+2581


def build_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer that a GGUF file's metadata describes; it adds a BOS token where the file says so.

    Raises:
        TokenizerError: no vocabulary, or a model or pre-tokenizer that is not supported.
    """
    kind = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        raise TokenizerError("the GGUF file carries no vocabulary")
    if kind == "gpt2":
        tokenizer = _byte_level(metadata, tokens)
    elif kind == "llama":
        tokenizer = _sentencepiece(metadata, tokens)
    else:
        raise TokenizerError(
            f"tokenizer model {kind!r}; supported are gpt2 (byte-level BPE) and llama (SentencePiece BPE)"
        )
    _add_special(tokenizer, metadata, tokens)
    return tokenizer


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    merges = metadata.get("tokenizer.ggml.merges")
    if merges is None:
        raise TokenizerError("a byte-level BPE vocabulary needs tokenizer.ggml.merges")
    name = metadata.get("tokenizer.ggml.pre", "default")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    # A merge's parts hold no space: byte-level BPE writes it as another letter.
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=name in ("llama-bpe", "llama3", "llama-v3")))
    tokenizer.pre_tokenizer = _pre_tokenizer(name)
    tokenizer.decoder = decoders.ByteLevel()
    if name in ("qwen2", "deepseek-r1-qwen"):
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=True)
    if name in ("gpt-2", "gpt2"):
        return gpt2
    if name in ("smollm", "starcoder", "refact", "command-r", "codeshell"):
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    if name in ("llama-bpe", "llama3", "llama-v3"):
        return _splits(_LLAMA3)
    if name in ("qwen2", "deepseek-r1-qwen"):
        return _splits(_QWEN2)
    if name == "default":
        return _splits(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
    raise TokenizerError(f"pre-tokenizer {name!r}; supported are smollm, gpt-2, llama-bpe, qwen2 and default")


def _splits(*patterns: str) -> pre_tokenizers.PreTokenizer:
    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False) for pattern in patterns
    ]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False))
    return pre_tokenizers.Sequence(steps)


def _sentencepiece(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    scores = metadata.get("tokenizer.ggml.scores")
    if scores is None:
        raise TokenizerError("a SentencePiece vocabulary needs tokenizer.ggml.scores")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = tokens[metadata.get("tokenizer.ggml.unknown_token_id", 0)]
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary, _merges_by_score(vocabulary, scores), unk_token=unknown, fuse_unk=True, byte_fallback=True
        )
    )
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE)]
    decoding = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend(_SPACE))
        decoding.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(decoding)
    return tokenizer


def _merges_by_score(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Recover merges: SentencePiece always joins the pair whose joined piece has the highest score."""
    merges = []
    for token, index in vocabulary.items():
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in vocabulary and right in vocabulary:
                merges.append((-scores[index], -len(left), -len(right), left, right))
    merges.sort(key=lambda merge: merge[:3])
    return [(left, right) for *_, left, right in merges]


def _add_special(tokenizer: Tokenizer, metadata: Mapping[str, Any], tokens: Sequence[str]) -> None:
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    for token, token_type in zip(tokens, types, strict=True):
        if token_type in (_CONTROL, _USER_DEFINED):
            tokenizer.add_tokens([AddedToken(token, special=token_type == _CONTROL, normalized=False)])
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    # SentencePiece models start with BOS unless the file says otherwise; byte-level ones only if it says so.
    if bos is not None and metadata.get("tokenizer.ggml.add_bos_token", metadata["tokenizer.ggml.model"] == "llama"):
        name = tokens[bos]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{name} $A", pair=f"{name} $A $B", special_tokens=[(name, bos)]
        )
