"""Finding checkpoints, and what is said when they are not what they claim to be."""

import hashlib
import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagoda_engine.model.checkpoint import open_checkpoint
from pagoda_engine.model.errors import CheckpointError
from pagoda_engine.model.location import locate
from tests.support.checkpoints import tiny_checkpoint


def no_progress(stage: str, share: float) -> None:
    pass


def edit_config(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_package_is_located_and_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "weights_in_a_package"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CheckpointError, match="found 0"):
        locate(package="weights-in-a-package")
    file = package / "data" / "model.gguf"
    file.touch()
    assert locate(package="weights-in-a-package").path == file
    assert "weights_in_a_package" not in sys.modules
    (package / "other.gguf").touch()
    with pytest.raises(CheckpointError, match=r"exactly one \.gguf file, found 2"):
        locate(package="weights_in_a_package")


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'no_such_weights' is not installed"):
        locate(package="no_such_weights")
    with pytest.raises(CheckpointError, match="not the name of a top-level package"):
        locate(package="os.path")
    with pytest.raises(CheckpointError, match="no such file or folder"):
        locate(path=tmp_path / "absent")
    with pytest.raises(CheckpointError, match="exactly one"):
        locate(path=tmp_path)
    with pytest.raises(CheckpointError, match="exactly one of them"):
        locate()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(CheckpointError, match=r"expected a \.gguf file"):
        locate(path=tmp_path / "notes.txt")
    (tmp_path / "one.gguf").touch()
    assert locate(path=tmp_path).is_gguf


def test_the_digest_is_over_the_bytes_of_all_files_in_name_order(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path, "qwen2")
    whole = load_file(folder / "model.safetensors")
    names = sorted(whole)
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for shard, part in (("model-2.safetensors", names[:10]), ("model-1.safetensors", names[10:])):
        save_file({name: whole[name] for name in part}, folder / shard)
        weight_map |= dict.fromkeys(part, shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "unrelated.safetensors").write_bytes(b"not one of them")
    checkpoint = open_checkpoint(locate(path=folder))
    assert torch.equal(checkpoint.tensor(names[0], tuple(whole[names[0]].shape)), whole[names[0]])
    content = (folder / "model-1.safetensors").read_bytes() + (folder / "model-2.safetensors").read_bytes()
    assert checkpoint.weights_digest(no_progress) == hashlib.sha256(content).hexdigest()
    (folder / "model-2.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-2\.safetensors: missing"):
        open_checkpoint(locate(path=folder))


def test_half_precision_is_widened(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path, "llama")
    whole = load_file(folder / "model.safetensors")
    save_file({name: tensor.to(torch.bfloat16) for name, tensor in whole.items()}, folder / "model.safetensors")
    tensor = open_checkpoint(locate(path=folder)).tensor("model.norm.weight", (64,))
    assert torch.equal(tensor, whole["model.norm.weight"].to(torch.bfloat16).float())


def test_damage_is_reported_with_the_file_or_tensor(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path, "llama")
    checkpoint = open_checkpoint(locate(path=folder))
    with pytest.raises(CheckpointError, match=r"lm_head\.bias is missing"):
        checkpoint.tensor("lm_head.bias", (1,))
    with pytest.raises(CheckpointError, match=r"expected shape \(3,\), got \(64,\)"):
        checkpoint.tensor("model.norm.weight", (3,))
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: missing, truncated or damaged"):
        open_checkpoint(locate(path=folder))
    file.unlink()
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors"):
        open_checkpoint(locate(path=folder))
    (folder / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"config\.json: expected a JSON object"):
        open_checkpoint(locate(path=folder))
