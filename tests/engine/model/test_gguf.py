"""Our reader of GGUF against the package that defines it, and against damaged files."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from pagoda_engine.model.checkpoint import open_checkpoint
from pagoda_engine.model.errors import CheckpointError, UnsupportedModelError
from pagoda_engine.model.gguf import GgufFile
from pagoda_engine.model.interface import SequenceChunk
from pagoda_engine.model.location import locate
from tests.engine.model.runners import make_runner
from tests.support.checkpoints import FAMILIES, config_dict, random_tensors, tiny_checkpoint
from tests.support.gguf_files import tiny_gguf

QUANTIZATIONS = [
    gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.BF16, gguf.GGMLQuantizationType.Q8_0,
    gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q4_1,
]  # fmt: skip


def test_metadata_and_values_are_those_of_the_gguf_package(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path, "llama", quantization=gguf.GGMLQuantizationType.Q4_1)
    ours, theirs = GgufFile(path), gguf.GGUFReader(path)
    assert ours.metadata == {
        key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")
    }
    assert set(ours.tensors) == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(ours.values(tensor.name), expected.reshape(ours.tensors[tensor.name].shape))


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_come_back_under_their_names_and_in_their_order(tmp_path: Path, family: str) -> None:
    checkpoint = open_checkpoint(locate(path=tiny_gguf(tmp_path, family)))
    for name, expected in random_tensors(config_dict(family)).items():
        assert torch.equal(checkpoint.tensor(name, tuple(expected.shape)), expected), name


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_weights_give_the_same_logits_from_either_format(tmp_path: Path, family: str) -> None:
    runners = [
        make_runner(path, exact=True) for path in (tiny_gguf(tmp_path, family), tiny_checkpoint(tmp_path, family))
    ]
    first, second = (runner.logits(SequenceChunk(list(range(40)), 0, range(3), None)) for runner in runners)
    assert (first - second).abs().max().item() < 1e-4  # GGUF keeps eps in fp32


@pytest.mark.parametrize("quantization", QUANTIZATIONS, ids=lambda kind: kind.name)
def test_quantized_weights_stay_near(tmp_path: Path, quantization: gguf.GGMLQuantizationType) -> None:
    checkpoint = open_checkpoint(locate(path=tiny_gguf(tmp_path, "qwen3", quantization=quantization)))
    expected = random_tensors(config_dict("qwen3"))["model.layers.1.mlp.down_proj.weight"]
    assert (checkpoint.tensor("model.layers.1.mlp.down_proj.weight", (64, 128)) - expected).abs().max().item() < 0.05


def test_rope_factors_written_as_a_tensor_are_read(tmp_path: Path) -> None:
    path = tmp_path / "factors.gguf"
    source = GgufFile(tiny_gguf(tmp_path, "llama"))
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in source.metadata.items():
        if key.startswith("llama."):
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    for name in source.tensors:
        writer.add_tensor(name, source.values(name))
    writer.add_tensor("rope_freqs.weight", np.linspace(1, 8, 8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    scaling = open_checkpoint(locate(path=path)).config.rope_scaling
    assert scaling is not None
    assert scaling.factors == tuple(float(value) for value in range(1, 9))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.2, 0.9])
def test_a_truncated_file_is_called_so(tmp_path: Path, share: float) -> None:
    path = tiny_gguf(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(CheckpointError, match=r"truncated|cannot be read|not a GGUF"):
        open_checkpoint(locate(path=path))


def test_another_file_and_a_later_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        GgufFile(path)
    path.write_bytes(b"GGUF" + (9).to_bytes(4, "little") + bytes(100))
    with pytest.raises(UnsupportedModelError, match="version 9"):
        GgufFile(path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    file = GgufFile(tiny_gguf(tmp_path))
    with pytest.raises(CheckpointError, match=r"blk\.7\.attn_q\.weight is missing"):
        file.values("blk.7.attn_q.weight")


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match="'mamba'; supported are llama, qwen2, qwen3"):
        open_checkpoint(locate(path=path))
