"""An engine whose codec writes other bytes than its peers' does not start."""

from pathlib import Path

import pytest
import torch

from pagoda_engine.model.codecs import int8, self_test
from pagoda_engine.model.codecs.registry import CODECS
from pagoda_engine.model.codecs.self_test import FROZEN, check_codec, fixed_page, measure
from pagoda_engine.model.errors import CodecError
from tests.engine.model.codecs.pages import DTYPES
from tests.engine.model.runners import make_runner
from tests.support.checkpoints import tiny_checkpoint

CPU = torch.device("cpu")


def test_each_codec_gives_what_was_frozen_for_each_dtype() -> None:
    assert set(FROZEN) == {(name, kv_dtype) for name in CODECS for kv_dtype in DTYPES}
    for name, kv_dtype in FROZEN:
        assert measure(name, kv_dtype, CPU) == FROZEN[name, kv_dtype]
        check_codec(name, kv_dtype, CPU)


def test_the_fixed_page_holds_what_codecs_stumble_over() -> None:
    page = fixed_page(torch.float32)
    assert (page[..., 7] == 0).all()
    assert page[..., 5].abs().amin() > 15 * 2.0**-18
    assert page[..., 3].abs().amax((-1, -2)).max() > page[..., 0].abs().amax((-1, -2)).max() * 16
    assert page.abs().amax() / page[0, 0, 0, 0].abs().amax() > 2**20


def test_a_codec_that_rounds_otherwise_keeps_the_engine_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_checkpoint(tmp_path, "llama")
    make_runner(folder, exact=True, codec="Int8")
    monkeypatch.setattr(int8, "LEVELS", 126.0)
    with pytest.raises(CodecError, match="Int8 fails its self-test on this machine with KV dtype Float32"):
        make_runner(folder, exact=True, codec="Int8")
    make_runner(folder, exact=True, codec="Raw")


def test_a_raised_revision_wants_a_new_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8.Int8Codec, "revision", 2)
    with pytest.raises(CodecError, match="revision 2 gives"):
        self_test.check_codec("Int8", "Float32", CPU)
