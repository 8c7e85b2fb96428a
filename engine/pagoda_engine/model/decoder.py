"""The one decoder of all families: Llama, Mistral, Qwen2, Qwen3 differ in a bias, a norm and a window.

    x ─ norm ─ qkv ─ (norm per head) ─ rotate ─► pages ─ attention ─ output ─ + ─ norm ─ gate, up ─ silu ─ down ─ +

Works on the packed rows of a step. What works row by row is written as functions of a tile of rows, and `by_tiles`
decides how many rows a call gets; only attention looks across rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from pagoda_engine.model.attention import ChunkPlan, PagedAttention
from pagoda_engine.model.checkpoint import Checkpoint, Progress
from pagoda_engine.model.config import DecoderConfig
from pagoda_engine.model.kv import PagedKV
from pagoda_engine.model.linear import EXACT_ROWS, Linear, by_tiles, make_linear, silu
from pagoda_engine.model.rotary import RotaryTable, rotate_


@dataclass(frozen=True)
class Step:
    """The rows of one step. Padding rows hold token 0 at position 0 and are neither written nor attended."""

    tokens: torch.Tensor  # (N,) int64
    positions: torch.Tensor  # (N,) int64
    used_rows: torch.Tensor  # (n,) rows that are no padding
    token_index: torch.Tensor  # (n·2·kv_heads,) where their K and V go, see PagedKV.token_index
    plans: Sequence[ChunkPlan]


class Layer:
    """One transformer layer's row-wise halves, before and after attention."""

    def __init__(self, index: int, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device, rows: int):
        config = checkpoint.config
        self._config = config
        self._exact = rows == EXACT_ROWS
        name = f"model.layers.{index}."
        hidden, head_dim = config.hidden_size, config.head_dim
        query, key = config.num_heads * head_dim, config.num_kv_heads * head_dim

        def tensor(suffix: str, *shape: int) -> torch.Tensor:
            return checkpoint.tensor(name + suffix, shape)

        def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
            placed = None if bias is None else bias.to(device, dtype)
            return make_linear(weight.to(device, dtype), placed, rows)

        sizes = (("q", query), ("k", key), ("v", key))
        self._qkv = linear(
            torch.cat([tensor(f"self_attn.{part}_proj.weight", size, hidden) for part, size in sizes]),
            torch.cat([tensor(f"self_attn.{part}_proj.bias", size) for part, size in sizes])
            if config.qkv_bias
            else None,
        )
        self._output = linear(tensor("self_attn.o_proj.weight", hidden, query))
        self._gate_up = linear(
            torch.cat([tensor(f"mlp.{part}_proj.weight", config.intermediate_size, hidden) for part in ("gate", "up")])
        )
        self._down = linear(tensor("mlp.down_proj.weight", hidden, config.intermediate_size))
        self._attention_norm = tensor("input_layernorm.weight", hidden).to(device, dtype)
        self._mlp_norm = tensor("post_attention_layernorm.weight", hidden).to(device, dtype)
        if config.qk_norm:
            self._query_norm = tensor("self_attn.q_norm.weight", head_dim).to(device, dtype)
            self._key_norm = tensor("self_attn.k_norm.weight", head_dim).to(device, dtype)

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """Return Q, K and V heads of rows `x` (N, hidden), not yet rotated: (N, heads + 2·kv_heads, head_dim)."""
        config = self._config
        eps = config.rms_norm_eps
        normed = functional.rms_norm(x, x.shape[1:], self._attention_norm, eps)
        heads = self._qkv(normed).view(len(x), -1, config.head_dim)
        if config.qk_norm:
            query, key, value = torch.split(heads, [config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
            query = functional.rms_norm(query, query.shape[2:], self._query_norm, eps)
            key = functional.rms_norm(key, key.shape[2:], self._key_norm, eps)
            heads = torch.cat([query, key, value], dim=1)
        return heads

    def finish(self, x: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Return the layer's output rows from its input `x` (N, hidden) and what was attended (N, heads·head_dim)."""
        x = x + self._output(mixed)
        normed = functional.rms_norm(x, x.shape[1:], self._mlp_norm, self._config.rms_norm_eps)
        gate, up = self._gate_up(normed).chunk(2, dim=-1)
        return x + self._down(silu(gate, exact=self._exact) * up)


class Decoder:
    """All layers, the embedding and the head. `rows_per_call` is None in fast mode."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        dtype: torch.dtype,
        device: torch.device,
        exact: bool,
        num_positions: int,
        progress: Progress,
    ) -> None:
        config = checkpoint.config
        self.config: DecoderConfig = config
        self._rows_per_call = EXACT_ROWS if exact else None
        rows = EXACT_ROWS if exact else 2 * EXACT_ROWS
        self.layers = []
        for index in range(config.num_layers):
            self.layers.append(Layer(index, checkpoint, dtype=dtype, device=device, rows=rows))
            progress("weights", (index + 1) / (config.num_layers + 1))
        shape = (config.vocab_size, config.hidden_size)
        self._embedding = checkpoint.tensor("model.embed_tokens.weight", shape).to(device, dtype)
        tied = config.tied_embeddings
        head = self._embedding if tied else checkpoint.tensor("lm_head.weight", shape).to(device, dtype)
        self._head = make_linear(head, None, rows)
        self._norm = checkpoint.tensor("model.norm.weight", (config.hidden_size,)).to(device, dtype)
        self._rotary = RotaryTable(config, num_positions, device, dtype)
        progress("weights", 1.0)

    def forward(self, step: Step, kv: PagedKV, attention: PagedAttention) -> torch.Tensor:
        """Compute a step, write its K and V, return the last layer's rows (N, hidden)."""
        config = self.config
        x = self._embedding.index_select(0, step.tokens)
        cos, sin = self._rotary.at(step.positions)
        for index, layer in enumerate(self.layers):
            heads = by_tiles(layer.project, self._rows_per_call, x)
            rotate_(heads[:, : config.num_heads + config.num_kv_heads], cos, sin)
            kv.write(index, step.token_index, heads[:, config.num_heads :].index_select(0, step.used_rows))
            mixed = attention(index, heads[:, : config.num_heads], step.plans)
            x = by_tiles(layer.finish, self._rows_per_call, x, mixed)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return fp32 logits (N, vocab) of rows (N, hidden); in exact mode N must be whole tiles."""
        return by_tiles(self.head, self._rows_per_call, hidden)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return fp32 logits of one call's rows."""
        normed = functional.rms_norm(hidden, hidden.shape[1:], self._norm, self.config.rms_norm_eps)
        return self._head(normed).float()
