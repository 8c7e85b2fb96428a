"""`Tokenizer`: text to ids with character offsets, ids to text, and what the engine must know about the vocabulary."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from pagoda_engine.model.location import ModelLocation
from pagoda_engine.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from pagoda_engine.text.errors import TokenizerError
from pagoda_engine.text.gguf_tokenizer import build_from_gguf

# Tokens that end a turn or a text in the families served here, whatever else the files declare.
_END_TOKENS = ("<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "</s>")
# A letter or digit before plain white space: every pre-tokenizer we know cuts there, whatever comes later.
_SAFE_CUT = re.compile(r"(?<=[^\W_])(?=[ \t\r\n])")
_CUT_PROBE = "ab cd\tef\ngh 12 ij\r\nk"


@dataclass(frozen=True)
class Encoding:
    """Token ids, and for each the characters [start, end) of the text it came from; (0, 0) for tokens added."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class Tokenizer:
    """A model's tokenizer. Safe to use from several threads."""

    def __init__(self, backend: tokenizers.Tokenizer, *, bos_token: str | None, eos_ids: Sequence[int] = ()) -> None:
        """`eos_ids` are those that the model's files declare; the well-known end tokens of the vocabulary join them."""
        self._backend = backend
        backend.encode_special_tokens = False
        self.bos_token = bos_token
        known = (backend.token_to_id(token) for token in _END_TOKENS)
        self.eos_ids = frozenset(eos_ids) | {token_id for token_id in known if token_id is not None}
        self.eos_token = backend.id_to_token(eos_ids[0]) if eos_ids else None
        self._byte_level = isinstance(backend.decoder, tokenizers.decoders.ByteLevel)
        # A token that continues another one is left out: more text could turn the shorter into the longer.
        added = [token.content for token in backend.get_added_tokens_decoder().values()]
        firm = [token for token in added if not any(other != token and other.startswith(token) for other in added)]
        self._added = re.compile("|".join(re.escape(token) for token in sorted(firm, key=len, reverse=True)) or r"(?!)")

    @property
    def vocab_size(self) -> int:
        """Number of ids with a token; a model may have more rows."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, add_special: bool = True) -> Encoding:
        """Tokenize; `add_special` puts BOS in front where the model wants it (not after a chat template)."""
        # The library lets go of the interpreter's lock in its batch calls alone: with `encode` a prompt of 900 kB stood
        # still everything else in the process, `/ready` too, for seconds.
        (encoding,) = self._backend.encode_batch([_clean(text)], add_special_tokens=add_special)
        return Encoding(encoding.ids, encoding.offsets)

    def ids(self, text: str, *, add_special: bool = True) -> list[int]:
        """Return the ids of `encode` alone, several times faster."""
        (encoding,) = self._backend.encode_batch_fast([_clean(text)], add_special_tokens=add_special)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Return the text of `ids`; bytes that are no UTF-8 become U+FFFD, ids without a token nothing."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def detokenizer(self, *, skip_special: bool = True) -> Detokenizer:
        """Return a fresh incremental decoder; what it emits joins to `decode` of all ids."""
        if self._byte_level:
            return ByteDetokenizer(self._token, skip=self._special_ids if skip_special else frozenset())
        return WindowDetokenizer(lambda ids: self.decode(ids, skip_special=skip_special))

    def pretoken_boundaries(self, text: str) -> list[int]:
        """Return ascending character positions where a cut between tokens is certain, whatever text follows.

        A lower bound: white space after a letter or digit, and ends of special tokens. Position p holds as soon as the
        characters before p, and the one at p for white space, are known.
        """
        cuts = {match.end() for match in self._added.finditer(text)}
        if self._cuts_before_space:
            cuts.update(match.start() for match in _SAFE_CUT.finditer(text))
        return sorted(cuts)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over all that decides how text becomes ids."""
        content = f"{self._backend.to_str()}\n{sorted(self.eos_ids)}"
        return hashlib.sha256(content.encode()).digest()

    def _token(self, token_id: int) -> str | None:
        return self._backend.id_to_token(token_id)

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        added = self._backend.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    @cached_property
    def _cuts_before_space(self) -> bool:
        """Whether this pre-tokenizer cuts where `_SAFE_CUT` says; SentencePiece's has no cuts at all."""
        pre_tokenizer = self._backend.pre_tokenizer
        if pre_tokenizer is None:
            return False
        starts = {start for _, (start, _) in pre_tokenizer.pre_tokenize_str(_CUT_PROBE)}
        return {match.start() for match in _SAFE_CUT.finditer(_CUT_PROBE)} <= starts


def _clean(text: str) -> str:
    # A lone surrogate is legal in JSON and no text; the library would refuse the whole string for it.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def load_tokenizer(location: ModelLocation, metadata: Mapping[str, Any] | None = None) -> Tokenizer:
    """Build the tokenizer of a model: from `metadata` of its GGUF file, or from the files of its folder.

    Raises:
        TokenizerError: nothing usable there.
    """
    if location.is_gguf:
        assert metadata is not None, "a GGUF tokenizer is built from the file's metadata"
        return _from_gguf(metadata)
    return _from_folder(location.path)


def _from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    declared = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    return Tokenizer(
        build_from_gguf(metadata),
        bos_token=tokens[bos] if bos is not None else None,
        eos_ids=[token_id for token_id in declared if token_id is not None],
    )


def _from_folder(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    try:
        backend = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TokenizerError(f"{path}: cannot be read ({error})") from error
    except Exception as error:  # the library raises bare Exception for any malformed file
        raise TokenizerError(f"{path}: no tokenizer that can be used ({error})") from error
    backend.no_truncation()
    backend.no_padding()
    settings = optional_json(folder / "tokenizer_config.json")
    declared = optional_json(folder / "generation_config.json").get("eos_token_id")
    if declared is None:
        declared = optional_json(folder / "config.json").get("eos_token_id")
    eos_ids = declared if isinstance(declared, list) else [declared]
    named = _content(settings.get("eos_token"))
    return Tokenizer(
        backend,
        bos_token=_content(settings.get("bos_token")),
        eos_ids=[
            token_id for token_id in (named and backend.token_to_id(named), *eos_ids) if isinstance(token_id, int)
        ],
    )


def _content(token: Any) -> str | None:
    """Return a token that tokenizer_config.json writes as text or as an object with `content`."""
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) else None


def optional_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that may be absent.

    Raises:
        TokenizerError: it is there and no JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{path}: cannot be read ({error})") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path}: expected a JSON object")
    return value
