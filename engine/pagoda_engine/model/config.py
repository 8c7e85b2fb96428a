"""Every field the decoder reads, from GGUF metadata or from Hugging Face's config.json. Pure: no files, no tensors.

A field the decoder cannot honour is refused here, never ignored: a model that loads is a model that is computed right.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pagoda_engine.model.errors import CheckpointError, UnsupportedModelError
from pagoda_protocol.canonical import canonical_json

# Hugging Face's architectures and GGUF's, by the family whose differences they share.
_HF_FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_GGUF_FAMILIES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched. `kind` is linear, llama3, or factors (one divisor per frequency)."""

    kind: str
    factor: float = 1.0
    low_frequency_factor: float = 1.0  # llama3
    high_frequency_factor: float = 4.0  # llama3
    original_max_position: int = 8192  # llama3
    factors: tuple[float, ...] = ()  # GGUF writes llama3's scaling as a tensor


@dataclass(frozen=True)
class DecoderConfig:
    """The shape and the arithmetic of one decoder-only transformer."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False  # Qwen2
    qk_norm: bool = False  # Qwen3: RMSNorm over each head of Q and K, before the rotation
    sliding_window: int | None = None  # Mistral: a token sees itself and the window-1 tokens before it
    tied_embeddings: bool = False
    activation: str = "silu"

    def __post_init__(self) -> None:
        for name in ("hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "intermediate_size"):
            if getattr(self, name) < 1:
                raise CheckpointError(f"{name}: expected a positive number, got {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise CheckpointError(f"{self.num_heads} query heads are not a multiple of {self.num_kv_heads} KV heads")
        if self.head_dim % 2:
            raise UnsupportedModelError(f"head_dim {self.head_dim} is odd: rotary embedding needs pairs")
        if self.activation != "silu":
            raise UnsupportedModelError(f"activation {self.activation!r}; supported is silu")

    @property
    def queries_per_kv(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def kv_values_per_token(self) -> int:
        """Elements of KV one token takes, all layers, K and V."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim

    def config_digest(self) -> str:
        """Return the hex SHA-256 over all fields in canonical JSON, for the namespace."""
        return hashlib.sha256(canonical_json(asdict(self))).hexdigest()


def _required(source: Mapping[str, Any], key: str) -> Any:
    value = source.get(key)
    if value is None:
        raise CheckpointError(f"the model's configuration has no {key}")
    return value


# ---- Hugging Face ---------------------------------------------------------------------------------------------------


def config_from_hf(source: Mapping[str, Any]) -> DecoderConfig:
    """Read a config.json of transformers 4 or 5.

    Raises:
        UnsupportedModelError: another architecture, rope scaling, bias, activation or mixture of windows.
        CheckpointError: a required field is missing or senseless.
    """
    architectures = source.get("architectures") or [None]
    family = _HF_FAMILIES.get(architectures[0])
    if family is None:
        raise UnsupportedModelError(f"architecture {architectures[0]}; supported are {', '.join(_HF_FAMILIES)}")
    for key in ("attention_bias", "mlp_bias"):
        if source.get(key) and not (family == "qwen2" and key == "attention_bias"):
            raise UnsupportedModelError(f"{key}: true is not supported for {architectures[0]}")
    num_heads = _required(source, "num_attention_heads")
    hidden_size = _required(source, "hidden_size")
    return DecoderConfig(
        hidden_size=hidden_size,
        num_layers=_required(source, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=source.get("num_key_value_heads") or num_heads,
        head_dim=source.get("head_dim") or hidden_size // num_heads,
        intermediate_size=_required(source, "intermediate_size"),
        vocab_size=_required(source, "vocab_size"),
        max_position=_required(source, "max_position_embeddings"),
        rms_norm_eps=float(_required(source, "rms_norm_eps")),
        rope_theta=_hf_rope_theta(source),
        rope_scaling=_hf_rope_scaling(source),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        sliding_window=_hf_window(source, family),
        tied_embeddings=bool(source.get("tie_word_embeddings", False)),
        activation=source.get("hidden_act", "silu"),
    )


def _hf_rope(source: Mapping[str, Any]) -> Mapping[str, Any]:
    # transformers 5 writes rope_parameters, 4 wrote rope_theta and rope_scaling beside one another.
    rope: Mapping[str, Any] = source.get("rope_parameters") or source.get("rope_scaling") or {}
    if any(isinstance(value, Mapping) for value in rope.values()):
        raise UnsupportedModelError("rope parameters per layer type are not supported")
    return rope


def _hf_rope_theta(source: Mapping[str, Any]) -> float:
    rope = _hf_rope(source)
    if rope.get("partial_rotary_factor", source.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedModelError("partial_rotary_factor other than 1 is not supported")
    return float(rope.get("rope_theta") or source.get("rope_theta") or 10000.0)


def _hf_rope_scaling(source: Mapping[str, Any]) -> RopeScaling | None:
    rope = _hf_rope(source)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", factor=float(_required(rope, "factor")))
    if kind == "llama3":
        return RopeScaling(
            "llama3",
            factor=float(_required(rope, "factor")),
            low_frequency_factor=float(_required(rope, "low_freq_factor")),
            high_frequency_factor=float(_required(rope, "high_freq_factor")),
            original_max_position=int(_required(rope, "original_max_position_embeddings")),
        )
    raise UnsupportedModelError(f"rope scaling {kind!r}; supported are default, linear and llama3")


def _hf_window(source: Mapping[str, Any], family: str) -> int | None:
    window: int | None = source.get("sliding_window")
    if family == "mistral":
        return window
    layer_types = set(source.get("layer_types") or ())
    if (source.get("use_sliding_window") and window is not None) or layer_types - {"full_attention"}:
        raise UnsupportedModelError("windows that differ between layers (use_sliding_window) are not supported")
    return None


# ---- GGUF -----------------------------------------------------------------------------------------------------------


def config_from_gguf(
    metadata: Mapping[str, Any], vocab_size: int, *, tied_embeddings: bool, rope_factors: tuple[float, ...] = ()
) -> DecoderConfig:
    """Read a GGUF file's metadata; what GGUF says by tensors only comes in as arguments.

    Raises:
        UnsupportedModelError: another architecture or rope scaling.
        CheckpointError: a required field is missing or senseless.
    """
    name = metadata.get("general.architecture")
    family = _GGUF_FAMILIES.get(str(name))
    if family is None:
        raise UnsupportedModelError(f"GGUF architecture {name!r}; supported are {', '.join(_GGUF_FAMILIES)}")
    fields = {key.removeprefix(f"{name}."): value for key, value in metadata.items() if key.startswith(f"{name}.")}
    if fields.get("expert_count"):
        raise UnsupportedModelError("mixtures of experts are not supported")
    num_heads = _required(fields, "attention.head_count")
    hidden_size = _required(fields, "embedding_length")
    head_dim = int(fields.get("attention.key_length") or hidden_size // num_heads)
    if int(fields.get("rope.dimension_count", head_dim)) != head_dim:
        raise UnsupportedModelError("rotating a part of each head is not supported")
    return DecoderConfig(
        hidden_size=hidden_size,
        num_layers=_required(fields, "block_count"),
        num_heads=num_heads,
        num_kv_heads=fields.get("attention.head_count_kv") or num_heads,
        head_dim=head_dim,
        intermediate_size=_required(fields, "feed_forward_length"),
        vocab_size=vocab_size,
        max_position=_required(fields, "context_length"),
        rms_norm_eps=float(_required(fields, "attention.layer_norm_rms_epsilon")),
        rope_theta=float(fields.get("rope.freq_base", 10000.0)),
        rope_scaling=_gguf_rope_scaling(fields, rope_factors),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        sliding_window=fields.get("attention.sliding_window"),
        tied_embeddings=tied_embeddings,
    )


def _gguf_rope_scaling(fields: Mapping[str, Any], rope_factors: tuple[float, ...]) -> RopeScaling | None:
    kind = fields.get("rope.scaling.type", "none")
    if kind == "linear":
        return RopeScaling("linear", factor=float(_required(fields, "rope.scaling.factor")))
    if kind != "none":
        raise UnsupportedModelError(f"rope scaling {kind!r} in GGUF; supported are none and linear")
    return RopeScaling("factors", factors=rope_factors) if rope_factors else None
