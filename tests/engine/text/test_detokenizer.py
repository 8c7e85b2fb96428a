"""What a stream emits is never taken back, and joins to what decoding at once gives."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda_engine.model.location import locate
from pagoda_engine.text.detokenizer import token_bytes
from pagoda_engine.text.model_text import load_text
from pagoda_engine.text.tokenizer import Tokenizer
from tests.support.checkpoints import byte_alphabet, tiny_checkpoint


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_text(locate(path=tiny_checkpoint(tmp_path_factory.mktemp("model")))).tokenizer


def stream(tokenizer: Tokenizer, ids: list[int], *, skip_special: bool = True) -> list[str]:
    detokenizer = tokenizer.detokenizer(skip_special=skip_special)
    return [*(detokenizer.feed(token) for token in ids), detokenizer.finish()]


def test_a_character_comes_whole_or_not_yet(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a👩b").ids
    assert stream(tokenizer, ids) == ["a", "", "", "", "👩", "b", ""]


def test_half_a_character_at_the_end_is_a_replacement(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a世").ids[:-1]
    assert stream(tokenizer, ids) == ["a", "", "", "\ufffd"]


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 320), max_size=30), skip=st.booleans())
def test_any_ids_join_to_what_decode_gives(tokenizer: Tokenizer, ids: list[int], skip: bool) -> None:
    assert "".join(stream(tokenizer, ids, skip_special=skip)) == tokenizer.decode(ids, skip_special=skip)


@settings(max_examples=50, deadline=None)
@given(text=st.text(max_size=30))
def test_any_text_streams_through(tokenizer: Tokenizer, text: str) -> None:
    pieces = stream(tokenizer, tokenizer.encode(text).ids, skip_special=False)
    assert "".join(pieces) == text


def test_bytes_in_any_order_join_to_what_decode_gives(tokenizer: Tokenizer) -> None:
    choose = random.Random(0)
    lead = [3 + byte for byte in (0xC3, 0xE4, 0xF0, 0x9F, 0x80, 0xED, 0xA0, 0x41, 0xFF)]
    for _ in range(500):
        ids = [choose.choice(lead) for _ in range(6)]
        assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


def test_the_alphabet_maps_back_to_every_byte() -> None:
    assert [token_bytes(character) for character in byte_alphabet()] == [bytes([byte]) for byte in range(256)]
    assert token_bytes("日") == "日".encode()  # an added token outside the alphabet
