"""Ids, offsets, boundaries and end tokens, from tokenizer.json and from GGUF metadata."""

import json
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda_engine.model.location import locate
from pagoda_engine.text.errors import TokenizerError
from pagoda_engine.text.model_text import load_text
from pagoda_engine.text.tokenizer import Tokenizer
from tests.support.checkpoints import tiny_checkpoint
from tests.support.gguf_files import tiny_gguf

SAMPLES = [
    "the system on the table", "你好，世界", "👩‍👩‍👧 🎉", "def f(x):\n    return x ** 2  # 12\n",
    "a  b   c \n\n\n d\t\te", "12345 12", "<|im_start|>user\nhi<|im_end|>\n", " lead", "trail  ", "e\u0301 ñ",
    "don't I'LL", "", "\x00\x7f",
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_text(locate(path=tiny_checkpoint(tmp_path_factory.mktemp("model")))).tokenizer


@pytest.fixture(scope="module")
def from_gguf(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_text(locate(path=tiny_gguf(tmp_path_factory.mktemp("model")))).tokenizer


@pytest.mark.parametrize("text", SAMPLES)
def test_both_formats_give_the_same_ids_and_the_text_back(
    tokenizer: Tokenizer, from_gguf: Tokenizer, text: str
) -> None:
    encoding = tokenizer.encode(text)
    assert from_gguf.encode(text) == encoding
    assert tokenizer.ids(text) == from_gguf.ids(text) == encoding.ids
    assert tokenizer.decode(encoding.ids, skip_special=False) == text
    for start, end in encoding.offsets:
        assert 0 <= start < end <= len(text)
    assert [start for start, _ in encoding.offsets] == sorted(start for start, _ in encoding.offsets)


@pytest.mark.parametrize("method", ["encode", "ids"])
def test_a_long_text_holds_up_no_other_thread(tokenizer: Tokenizer, method: str) -> None:
    text, gaps, is_done = "1" * 150_000, [0.0], threading.Event()

    def tick() -> None:
        last = time.perf_counter()
        while not is_done.wait(0.001):
            gaps.append(time.perf_counter() - last)
            last = time.perf_counter()

    ticking = threading.Thread(target=tick)
    ticking.start()
    started = time.perf_counter()
    getattr(tokenizer, method)(text)
    seconds = time.perf_counter() - started
    is_done.set()
    ticking.join()
    assert max(gaps) < 0.7 * seconds, (max(gaps), seconds)


def test_offsets_are_in_characters(tokenizer: Tokenizer) -> None:
    encoding = tokenizer.encode("世the")
    assert encoding.offsets == [(0, 1), (0, 1), (0, 1), (1, 2), (2, 4)]  # three bytes of one character, t, he


def test_digits_stand_alone_in_smollm(tokenizer: Tokenizer) -> None:
    # "1 2" is a merge of this vocabulary; the pre-tokenizer keeps it from ever happening.
    assert len(tokenizer.encode("12").ids) == 2


def test_special_tokens_are_left_out_unless_wanted(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>a<|im_end|>").ids
    assert len(ids) == 3
    assert tokenizer.decode(ids) == "a"
    assert tokenizer.decode([*ids, 10_000]) == "a"  # models have rows without a token


def test_end_tokens_are_the_declared_and_the_well_known(tokenizer: Tokenizer, from_gguf: Tokenizer) -> None:
    assert tokenizer.eos_ids == from_gguf.eos_ids == {0, 2}
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|endoftext|>", "<|im_end|>")
    assert (from_gguf.bos_token, from_gguf.eos_token) == ("<|endoftext|>", "<|im_end|>")


def test_bos_is_added_only_where_the_model_wants_it(tmp_path: Path, from_gguf: Tokenizer) -> None:
    with_bos = load_text(locate(path=tiny_gguf(tmp_path, tokenizer={"add_bos_token": True}))).tokenizer
    plain = from_gguf.encode("the").ids
    assert with_bos.encode("the").ids == [0, *plain]
    assert with_bos.encode("the").offsets[0] == (0, 0)
    assert with_bos.encode("the", add_special=False).ids == plain


def test_a_lone_surrogate_is_no_text_and_no_error(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud800b").ids) == "a\ufffdb"


def test_the_digest_sees_vocabulary_and_pre_tokenizer(tmp_path: Path, from_gguf: Tokenizer) -> None:
    same = load_text(locate(path=tiny_gguf(tmp_path / "a"))).tokenizer
    other = load_text(locate(path=tiny_gguf(tmp_path / "b", tokenizer={"pre": "gpt-2"}))).tokenizer
    assert same.digest == from_gguf.digest
    assert other.digest != from_gguf.digest


# ---- boundaries -----------------------------------------------------------------------------------------------------


def test_boundaries_follow_words_and_special_tokens(tokenizer: Tokenizer) -> None:
    text = "the cat  12\n<|im_end|>\nsat"
    assert tokenizer.pretoken_boundaries(text) == [3, 7, 11, 22]
    assert tokenizer.pretoken_boundaries("日本語。!?  ") == []


TEXTS = st.text(st.sampled_from("ab1 \n\t.'é世<|im_end|>"), max_size=40)


@settings(max_examples=200, deadline=None)
@given(before=TEXTS, after=TEXTS, pre=st.sampled_from(["smollm", "gpt-2", "qwen2", "llama-bpe", "default"]))
def test_tokens_before_a_boundary_do_not_depend_on_what_follows(
    by_pre_tokenizer: dict[str, Tokenizer], before: str, after: str, pre: str
) -> None:
    tokenizer = by_pre_tokenizer[pre]
    for boundary in tokenizer.pretoken_boundaries(before):
        alone = tokenizer.encode(before[:boundary]).ids
        assert tokenizer.encode(before + after).ids[: len(alone)] == alone


@pytest.fixture(scope="module")
def by_pre_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("models")
    return {
        pre: load_text(locate(path=tiny_gguf(folder / pre, tokenizer={"pre": pre}))).tokenizer
        for pre in ("smollm", "gpt-2", "qwen2", "llama-bpe", "default")
    }


# ---- kinds ----------------------------------------------------------------------------------------------------------


def cuts(tokenizer: Tokenizer, text: str) -> list[str]:
    return [piece for piece, _ in tokenizer._backend.pre_tokenizer.pre_tokenize_str(text)]


def test_pre_tokenizers_cut_as_their_names_say(by_pre_tokenizer: dict[str, Tokenizer]) -> None:
    expected = {
        "smollm": ["ab", "Ġ", "1", "2", "3", "4", "'s", "ĊĊ", "5"],
        "gpt-2": ["ab", "Ġ1234", "'s", "Ċ", "Ċ", "5"],
        "qwen2": ["ab", "Ġ", "1", "2", "3", "4", "'s", "ĊĊ", "5"],
        "llama-bpe": ["ab", "Ġ", "123", "4", "'s", "ĊĊ", "5"],
        "default": ["ab", "Ġ", "123", "4", "'", "s", "Ċ", "Ċ", "5"],
    }
    assert {pre: cuts(tokenizer, "ab 1234's\n\n5") for pre, tokenizer in by_pre_tokenizer.items()} == expected


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"pre": "tekken"}, "'tekken'; supported are smollm"),
        ({"model": "t5"}, "'t5'; supported are gpt2"),
        ({"merges": None}, r"needs tokenizer\.ggml\.merges"),
        ({"model": "llama", "merges": None}, r"needs tokenizer\.ggml\.scores"),
        ({"tokens": None}, "carries no vocabulary"),
    ],
)
def test_a_kind_that_is_not_supported_is_refused_by_name(tmp_path: Path, keys: dict[str, str], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        load_text(locate(path=tiny_gguf(tmp_path, tokenizer=keys)))


def test_a_folder_without_a_usable_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match="no tokenizer that can be used"):
        load_text(locate(path=folder))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match="cannot be read"):
        load_text(locate(path=folder))


def test_end_tokens_of_a_folder_may_be_a_list(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 2]}))
    assert load_text(locate(path=folder)).tokenizer.eos_ids == {0, 2, 5}


SENTENCEPIECE = {
    "model": "llama", "pre": None, "merges": None, "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0,
    "add_bos_token": True,
    "tokens": [
        "<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁", "t", "h", "e", "▁t", "he", "▁the", "c",
    ],
    "scores": [0.0] * 259 + [-9.0, -10.0, -11.0, -12.0, -1.0, -2.0, -3.0, -13.0],
    "token_type": [2, 3, 3] + [6] * 256 + [1] * 8,
}  # fmt: skip


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes(tmp_path: Path) -> None:
    tokenizer = load_text(locate(path=tiny_gguf(tmp_path, tokenizer=SENTENCEPIECE))).tokenizer
    the, c = 265, 266
    assert tokenizer.encode("the").ids == [1, the]
    assert tokenizer.encode("the c").ids == [1, the, 259, c]
    assert tokenizer.encode("世", add_special=False).ids == [259, *(3 + byte for byte in "世".encode())]
    text = "the 世 c the"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.pretoken_boundaries(text) == []  # nothing cuts, so nothing is promised
    stream = tokenizer.detokenizer()
    pieces = [stream.feed(token) for token in ids]
    assert "".join(pieces) + stream.finish() == text
    assert not any("\ufffd" in piece for piece in pieces)
