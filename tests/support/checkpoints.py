"""Tiny random checkpoints in Hugging Face's folder layout, with a real tokenizer and chat template.

    folder/config.json  model.safetensors  tokenizer.json  tokenizer_config.json

Small enough to load in milliseconds, made so that logits are well apart: greedy tokens are not decided by rounding.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a small model.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

# In order of rank; Ġ stands for the space and Ċ for the newline in byte-level BPE.
_MERGES = (
    "h e", "Ġ t", "i n", "Ġ a", "e r", "o n", "r e", "Ġt he", "a t", "e n", "Ġ s", "o r", "Ġ w", "o u", "i s", "a l",
    "Ġ c", "Ġ o", "in g", "Ġ p", "e d", "i t", "Ġ f", "a n", "Ġ b", "Ġ in", "e s", "l l", "Ġt o", "Ġo f", "u s", "er s",
    "s y", "sy s", "t e", "sys te", "syste m", "Ġ Ġ", "Ċ Ċ", "1 2",
)  # fmt: skip


def byte_alphabet() -> list[str]:
    """Return GPT-2's 256 printable stand-ins, byte 0 first."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def vocabulary() -> list[str]:
    """Return the tokens by id: the special ones first, then bytes, then merges."""
    return [*SPECIAL_TOKENS, *byte_alphabet(), *(merge.replace(" ", "") for merge in _MERGES)]


def merges() -> list[str]:
    """Return the merges in order of rank, as `left right`."""
    return list(_MERGES)


def config_dict(family: str, **overrides: Any) -> dict[str, Any]:
    """Return the config.json of a tiny model of `family` (one of `FAMILIES`)."""
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[family]],
        "model_type": family,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 128,
        "vocab_size": len(vocabulary()) + 1,  # one id without a token, as padded vocabularies have
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": family == "qwen3",  # an untied head repeats itself less
        "bos_token_id": 0,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    if family == "mistral":
        config["sliding_window"] = None
    return config | overrides


def random_tensors(config: Mapping[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Return fp32 tensors under Hugging Face's names, a pure function of the config's shapes and `seed`."""
    generator = torch.Generator().manual_seed(seed)
    hidden, intermediate = config["hidden_size"], config["intermediate_size"]
    head_dim = config["head_dim"]
    query, key = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim

    def matrix(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * (gain / columns**0.5)

    def scale(size: int) -> torch.Tensor:
        return 1 + 0.1 * torch.randn(size, generator=generator)

    tensors = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden, 3.0)}
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}."
        tensors |= {
            layer + "input_layernorm.weight": scale(hidden),
            layer + "self_attn.q_proj.weight": matrix(query, hidden, 1.5),
            layer + "self_attn.k_proj.weight": matrix(key, hidden, 1.5),
            layer + "self_attn.v_proj.weight": matrix(key, hidden),
            layer + "self_attn.o_proj.weight": matrix(hidden, query),
            layer + "post_attention_layernorm.weight": scale(hidden),
            layer + "mlp.gate_proj.weight": matrix(intermediate, hidden),
            layer + "mlp.up_proj.weight": matrix(intermediate, hidden),
            layer + "mlp.down_proj.weight": matrix(hidden, intermediate),
        }
        if config["model_type"] == "qwen2":
            for name, size in (("q", query), ("k", key), ("v", key)):
                tensors[f"{layer}self_attn.{name}_proj.bias"] = 0.2 * torch.randn(size, generator=generator)
        if config["model_type"] == "qwen3":
            tensors[layer + "self_attn.q_norm.weight"] = scale(head_dim)
            tensors[layer + "self_attn.k_norm.weight"] = scale(head_dim)
    tensors["model.norm.weight"] = scale(hidden)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(config["vocab_size"], hidden, 3.0)
    return tensors


def tokenizer_dict() -> dict[str, Any]:
    """Return a tokenizer.json: byte-level BPE, digits one by one, the special tokens of ChatML."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": index, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True,
            }
            for index, token in enumerate(SPECIAL_TOKENS)
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(vocabulary())},
            "merges": [merge.split(" ") for merge in _MERGES],
        },
    }  # fmt: skip


def tiny_checkpoint(folder: Path, family: str = "llama", *, seed: int = 0, **overrides: Any) -> Path:
    """Write a tiny random checkpoint of `family` under `folder` and return its folder.

    `overrides` replace fields of config.json, e.g. `num_hidden_layers=3`. The same arguments write the same bytes.
    """
    config = config_dict(family, **overrides)
    target = folder / f"tiny-{family}-{seed}"
    target.mkdir(parents=True, exist_ok=True)
    save_file(random_tensors(config, seed), target / "model.safetensors", metadata={"format": "pt"})
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[2],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    for name, content in (
        ("config.json", config),
        ("tokenizer.json", tokenizer_dict()),
        ("tokenizer_config.json", tokenizer_config),
    ):
        (target / name).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    return target
