"""Tiny GGUF files with a tiny checkpoint's weights, written by the `gguf` package as llama.cpp's converter does."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from tests.support.checkpoints import CHAT_TEMPLATE, SPECIAL_TOKENS, config_dict, merges, random_tensors, vocabulary

_LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_tensor_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_LAYER[part]}.{kind}"


def permute(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Order the rows of a Llama Q or K matrix as GGUF does (convert_hf_to_gguf.py)."""
    rows = weight.shape[0]
    return weight.reshape(num_heads, 2, rows // num_heads // 2, -1).transpose(1, 2).reshape(weight.shape)


def tiny_gguf(
    folder: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    quantization: gguf.GGMLQuantizationType | None = None,
    tokenizer: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Path:
    """Write the weights of `tiny_checkpoint(family, seed=seed, **overrides)` as GGUF; return the file.

    Matrices are stored as `quantization` (fp32 if None). `tokenizer` replaces tokenizer.ggml.* keys; None drops one.
    """
    config = config_dict(family, **overrides)
    name = {"mistral": "llama"}.get(family, family)
    path = folder / f"tiny-{family}-{seed}.gguf"
    folder.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    _add_tokenizer(writer, config["vocab_size"], tokenizer or {})
    for hf_name, tensor in random_tensors(config, seed).items():
        if name == "llama" and "q_proj" in hf_name:
            tensor = permute(tensor, config["num_attention_heads"])
        if name == "llama" and "k_proj" in hf_name:
            tensor = permute(tensor, config["num_key_value_heads"])
        values = np.ascontiguousarray(tensor.numpy())
        if quantization is not None and values.ndim == 2:
            packed = gguf.quants.quantize(values, quantization)
            writer.add_tensor(gguf_tensor_name(hf_name), packed, raw_dtype=quantization)
        else:
            writer.add_tensor(gguf_tensor_name(hf_name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter, vocab_size: int, replaced: Mapping[str, Any]) -> None:
    tokens = vocabulary()
    padding = vocab_size - len(tokens)
    keys: dict[str, Any] = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens + [f"[PAD{index}]" for index in range(padding)],
        "token_type": [3] * len(SPECIAL_TOKENS) + [1] * (len(tokens) - len(SPECIAL_TOKENS)) + [5] * padding,
        "merges": merges(),
        "bos_token_id": 0,
        "eos_token_id": 2,
        "add_bos_token": False,
    }
    for key, value in (keys | dict(replaced)).items():
        name = f"tokenizer.ggml.{key}"
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif value is not None:
            writer.add_string(name, value)
    writer.add_chat_template(CHAT_TEMPLATE)
