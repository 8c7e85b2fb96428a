"""What a configuration says is honoured or refused, never ignored."""

from dataclasses import fields, replace
from typing import Any

import pytest

from pagoda_engine.model.config import DecoderConfig, RopeScaling, config_from_gguf, config_from_hf
from pagoda_engine.model.errors import CheckpointError, ModelError, UnsupportedModelError
from tests.support.checkpoints import FAMILIES, config_dict

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_families_differ_in_bias_norm_and_window(family: str) -> None:
    config = config_from_hf(config_dict(family, sliding_window=32))
    assert config.qkv_bias == (family == "qwen2")
    assert config.qk_norm == (family == "qwen3")
    assert config.sliding_window == (32 if family == "mistral" else None)
    assert (config.num_heads, config.num_kv_heads, config.queries_per_kv) == (4, 2, 2)


def test_rope_is_read_as_transformers_4_and_5_write_it() -> None:
    scaling = RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
    four = config_from_hf(config_dict("llama", rope_theta=5e5, rope_scaling=LLAMA3))
    five = config_from_hf(config_dict("llama", rope_theta=None, rope_parameters=LLAMA3 | {"rope_theta": 5e5}))
    assert four == five
    assert (four.rope_theta, four.rope_scaling) == (5e5, scaling)
    linear = config_from_hf(config_dict("llama", rope_scaling={"type": "linear", "factor": 2}))
    assert linear.rope_scaling == RopeScaling("linear", 2.0)
    plain = config_from_hf(config_dict("llama", rope_parameters={"rope_type": "default", "rope_theta": 1e6}))
    assert (plain.rope_theta, plain.rope_scaling) == (1e6, None)


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            UnsupportedModelError,
            "GPT2LMHeadModel; supported are LlamaForCausalLM",
        ),
        ({"architectures": None}, UnsupportedModelError, "supported are"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, UnsupportedModelError, "'yarn'; supported are default"),
        ({"rope_scaling": {"rope_type": "llama3"}}, CheckpointError, "no factor"),
        ({"hidden_act": "gelu"}, UnsupportedModelError, "'gelu'; supported is silu"),
        ({"attention_bias": True}, UnsupportedModelError, "attention_bias"),
        ({"mlp_bias": True}, UnsupportedModelError, "mlp_bias"),
        ({"partial_rotary_factor": 0.5}, UnsupportedModelError, "partial_rotary_factor"),
        ({"num_key_value_heads": 3}, CheckpointError, "not a multiple"),
        ({"rms_norm_eps": None}, CheckpointError, "no rms_norm_eps"),
        ({"head_dim": 15}, UnsupportedModelError, "odd"),
        ({"num_hidden_layers": 0}, CheckpointError, "num_layers"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, UnsupportedModelError, "differ between layers"),
    ],
)
def test_what_cannot_be_computed_is_refused(overrides: dict[str, Any], error: type[ModelError], message: str) -> None:
    with pytest.raises(error, match=message):
        config_from_hf(config_dict("llama", **overrides))


def test_gguf_says_the_same_in_other_words() -> None:
    metadata = {
        "general.architecture": "qwen3", "qwen3.embedding_length": 64, "qwen3.block_count": 2,
        "qwen3.attention.head_count": 4, "qwen3.attention.head_count_kv": 2, "qwen3.attention.key_length": 16,
        "qwen3.feed_forward_length": 128, "qwen3.context_length": 4096, "qwen3.rope.freq_base": 10000.0,
        "qwen3.attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    assert config_from_gguf(metadata, 300, tied_embeddings=True) == config_from_hf(config_dict("qwen3"))
    with pytest.raises(UnsupportedModelError, match="'yarn' in GGUF"):
        config_from_gguf(metadata | {"qwen3.rope.scaling.type": "yarn"}, 300, tied_embeddings=True)
    with pytest.raises(UnsupportedModelError, match="experts"):
        config_from_gguf(metadata | {"qwen3.expert_count": 8}, 300, tied_embeddings=True)
    with pytest.raises(CheckpointError, match="context_length"):
        config_from_gguf(metadata | {"qwen3.context_length": None}, 300, tied_embeddings=True)


def test_the_digest_covers_every_field() -> None:
    config = config_from_hf(config_dict("mistral", num_attention_heads=4, num_key_value_heads=2))
    changed = {
        "hidden_size": 128, "num_layers": 9, "num_heads": 8, "num_kv_heads": 1, "head_dim": 8, "intermediate_size": 9,
        "vocab_size": 9, "max_position": 9, "rms_norm_eps": 0.1, "rope_theta": 9.0,
        "rope_scaling": RopeScaling("linear", 3.0), "qkv_bias": True, "qk_norm": True, "sliding_window": 9,
        "tied_embeddings": True,
    }  # fmt: skip
    assert {field.name for field in fields(DecoderConfig)} == changed.keys() | {"activation"}
    digests = {replace(config, **{name: value}).config_digest() for name, value in changed.items()}
    assert len(digests | {config.config_digest()}) == len(changed) + 1
