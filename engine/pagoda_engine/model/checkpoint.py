"""Checkpoints: one way to ask for a model's config and weights, whatever the files are.

Weights come out in fp32 under Hugging Face's names and in its row order; nothing is kept once handed out.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from pagoda_engine.model.config import DecoderConfig, config_from_gguf, config_from_hf
from pagoda_engine.model.errors import CheckpointError
from pagoda_engine.model.gguf import GgufFile
from pagoda_engine.model.location import ModelLocation

Progress = Callable[[str, float], None]  # (stage, share of it that is done, 0..1)

_DIGEST_CHUNK_BYTES = 16 << 20


class Checkpoint(Protocol):
    """A model's config and weights."""

    config: DecoderConfig
    location: ModelLocation

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return one weight in fp32.

        Raises:
            CheckpointError: it is missing, unreadable or of another shape.
        """

    def weights_digest(self, progress: Progress) -> str:
        """Return the hex SHA-256 over the bytes of the checkpoint's weight files, in the order of their names."""


def open_checkpoint(location: ModelLocation) -> Checkpoint:
    """Open what `location` found.

    Raises:
        CheckpointError: missing, truncated or damaged files.
        UnsupportedModelError: a model the decoder cannot compute.
    """
    return GgufCheckpoint(location) if location.is_gguf else SafetensorsCheckpoint(location)


def _digest_files(paths: Sequence[Path], progress: Progress) -> str:
    total = max(1, sum(path.stat().st_size for path in paths))
    digest, done = hashlib.sha256(), 0
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(_DIGEST_CHUNK_BYTES):
                digest.update(chunk)
                done += len(chunk)
                progress("digest", done / total)
    return digest.hexdigest()


def _checked(tensor: torch.Tensor, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    if tuple(tensor.shape) != shape:
        raise CheckpointError(f"tensor {name}: expected shape {shape}, got {tuple(tensor.shape)}")
    return tensor


# ---- safetensors ----------------------------------------------------------------------------------------------------


class SafetensorsCheckpoint:
    """A folder with config.json and *.safetensors, sharded by an index or not."""

    def __init__(self, location: ModelLocation) -> None:
        self.location = location
        self.config = config_from_hf(read_json(location.path / "config.json"))
        index = location.path / "model.safetensors.index.json"
        if index.is_file():
            names: dict[str, str] = read_json(index).get("weight_map", {})
            self._files = sorted({location.path / name for name in names.values()})
        else:
            self._files = sorted(location.path.glob("*.safetensors"))
        if not self._files:
            raise CheckpointError(f"{location.path}: no *.safetensors file")
        self._open: dict[str, Any] = {}  # tensor name -> the open file that holds it
        for path in self._files:
            try:
                file = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{path}: missing, truncated or damaged ({error})") from error
            self._open |= dict.fromkeys(file.keys(), file)  # type: ignore[no-untyped-call]

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return one weight in fp32; see `Checkpoint`."""
        file = self._open.get(name)
        if file is None:
            raise CheckpointError(f"{self.location.path}: tensor {name} is missing")
        try:
            tensor: torch.Tensor = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self.location.path}: tensor {name} cannot be read ({error})") from error
        return _checked(tensor.to(torch.float32), name, shape)

    def weights_digest(self, progress: Progress) -> str:
        """Return the hex SHA-256 over the weight files; see `Checkpoint`."""
        return _digest_files(self._files, progress)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        CheckpointError: missing or no JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object")
    return value


# ---- GGUF -----------------------------------------------------------------------------------------------------------

_GGUF_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
_GGUF_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def gguf_name(name: str) -> str:
    """Return GGUF's name of a tensor that Hugging Face calls `name`."""
    if name in _GGUF_TOP:
        return _GGUF_TOP[name]
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_GGUF_LAYER[rest]}"


class GgufCheckpoint:
    """One GGUF file, dequantised to fp32."""

    def __init__(self, location: ModelLocation) -> None:
        self.location = location
        self.file = GgufFile(location.path)
        embedding = self.file.tensors.get("token_embd.weight")
        if embedding is None:
            raise CheckpointError(f"{location.path}: tensor token_embd.weight is missing")
        factors = self.file.values("rope_freqs.weight").tolist() if "rope_freqs.weight" in self.file.tensors else ()
        self.config = config_from_gguf(
            self.file.metadata,
            embedding.shape[0],
            tied_embeddings="output.weight" not in self.file.tensors,
            rope_factors=tuple(factors),
        )
        # Only files of the Llama architecture carry permuted rows; the converters of Qwen leave them in place.
        self._permuted = self.file.metadata["general.architecture"] == "llama"

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return one weight in fp32; see `Checkpoint`."""
        values = self.file.values(gguf_name(name))
        tensor = _checked(torch.from_numpy(values), name, shape)
        if self._permuted and name.endswith("q_proj.weight"):
            return unpermute(tensor, self.config.num_heads)
        if self._permuted and name.endswith("k_proj.weight"):
            return unpermute(tensor, self.config.num_kv_heads)
        return tensor

    def weights_digest(self, progress: Progress) -> str:
        """Return the hex SHA-256 over the file; see `Checkpoint`."""
        return _digest_files([self.location.path], progress)


def unpermute(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Undo GGUF's order of a Llama Q or K matrix, whose rows pair (0, 1), (2, 3), … within each head.

    Hugging Face pairs row i with row i + head_dim/2. `weight` is (heads · head_dim, in) and keeps its shape.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)  # (heads, head_dim/2, 2, in)
    return pairs.transpose(1, 2).reshape(rows, columns)
