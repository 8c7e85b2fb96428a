"""Paged attention in plain torch: per chunk, gather the sequence's K and V, then attend tile by tile.

A *tile* is a run of query rows attended in one call against keys [first_key, end_key). One function serves both modes:

    fast   the whole chunk is one tile, keys end with the chunk
    exact  tiles lie at absolute positions (tile = position // QUERY_TILE, row = position % QUERY_TILE) and keys end
           with the tile, so the call's shape and the place of every operand are functions of the position alone,
           however the prompt was cut into chunks. torch's CPU attention cuts keys into splits of fixed length and
           combines them in order (online softmax, arXiv 1805.02867).

Nothing past a sequence's length is ever used: gathered rows past it are replaced by zeros, since 0 · NaN is NaN.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from pagoda_engine.model.config import DecoderConfig
from pagoda_engine.model.interface import SequenceChunk
from pagoda_engine.model.kv import PagedKV

QUERY_TILE = 16  # query rows of every call in exact mode
# Up to here the query heads of one KV head are folded into query rows, which reads K and V once per KV head.
_FOLDED_ROWS = 16


@dataclass(frozen=True)
class Tile:
    """One call: query rows [first_query, end_query) of the chunk's padded queries, keys relative to the gather."""

    first_query: int
    end_query: int
    first_key: int
    end_key: int
    mask: torch.Tensor | None  # (rows, keys) 0 or -inf; rows are heads·queries when folded; None: all is visible


@dataclass(frozen=True)
class ChunkPlan:
    """How one chunk attends, computed once a step for all layers."""

    first_row: int  # row of the first token in the step
    num_tokens: int
    query_offset: int  # rows of padding before the first query
    num_queries: int  # with padding
    block_index: torch.Tensor
    num_keys: int  # gathered keys that exist; those behind are zeroed
    tiles: tuple[Tile, ...]


class PagedAttention:
    """Causal attention over pages, with an optional sliding window."""

    def __init__(self, config: DecoderConfig, kv: PagedKV, *, exact: bool, device: torch.device) -> None:
        self._config = config
        self._kv = kv
        self._exact = exact
        self._device = device

    def plan(self, chunk: SequenceChunk, first_row: int, dtype: torch.dtype) -> ChunkPlan:
        """Lay out a chunk's tiles; the KV it will read need not be written yet."""
        start, end = chunk.start, chunk.start + len(chunk.tokens)
        if self._exact:
            spans = [(at, at + QUERY_TILE) for at in range(start // QUERY_TILE * QUERY_TILE, end, QUERY_TILE)]
        else:
            spans = [(start, end)]
        # The first page anybody sees, then whole pages up to the last tile's end.
        block = self._kv.block_tokens
        first_page = self._first_key(spans[0][0]) // block
        num_pages = -(-spans[-1][1] // block) - first_page
        pages = list(chunk.pages[first_page : first_page + num_pages])
        pages += pages[:1] * (num_pages - len(pages))  # a tile may end behind the table: any page, it is zeroed
        gathered_from = first_page * block
        return ChunkPlan(
            first_row=first_row,
            num_tokens=len(chunk.tokens),
            query_offset=start - spans[0][0],
            num_queries=spans[-1][1] - spans[0][0],
            block_index=self._kv.block_index(torch.tensor(pages, device=self._device)),
            num_keys=end - gathered_from,
            tiles=tuple(self._tile(span, spans[0][0], gathered_from, dtype) for span in spans),
        )

    def _first_key(self, position: int) -> int:
        """Return the first key that a tile starting at `position` may see; in exact mode on a tile's border."""
        if self._config.sliding_window is None:
            return 0
        first = max(0, position - self._config.sliding_window + 1)
        return first // QUERY_TILE * QUERY_TILE if self._exact else first

    def _tile(self, span: tuple[int, int], origin: int, gathered_from: int, dtype: torch.dtype) -> Tile:
        start, end = span
        first_key = self._first_key(start)
        mask = self._mask(start, end, first_key, dtype) if end - start > 1 else None
        return Tile(start - origin, end - origin, first_key - gathered_from, end - gathered_from, mask)

    def _mask(self, start: int, end: int, first_key: int, dtype: torch.dtype) -> torch.Tensor:
        queries = torch.arange(start, end, device=self._device)[:, None]
        keys = torch.arange(first_key, end, device=self._device)[None, :]
        hidden = keys > queries
        if self._config.sliding_window is not None:
            hidden |= keys <= queries - self._config.sliding_window
        mask = torch.zeros(hidden.shape, dtype=dtype, device=self._device).masked_fill_(hidden, float("-inf"))
        return mask.repeat(self._config.queries_per_kv, 1) if end - start <= _FOLDED_ROWS else mask

    def __call__(self, layer: int, queries: torch.Tensor, plans: Sequence[ChunkPlan]) -> torch.Tensor:
        """Attend `queries` (N, heads, head_dim) of all chunks; return (N, heads·head_dim), zeros in padding rows.

        The chunks' own K and V must have been written.
        """
        mixed = queries.new_zeros(queries.shape[0], queries.shape[1] * queries.shape[2])
        for plan in plans:
            rows = slice(plan.first_row, plan.first_row + plan.num_tokens)
            mixed[rows] = self._attend_chunk(layer, queries[rows], plan)
        return mixed

    def _attend_chunk(self, layer: int, queries: torch.Tensor, plan: ChunkPlan) -> torch.Tensor:
        gathered = self._kv.gather(layer, plan.block_index)  # (2, kv_heads, keys, head_dim)
        gathered[:, :, plan.num_keys :] = 0
        keys, values = gathered[0], gathered[1]
        if self._exact:  # copied even when nothing is missing, so that the operands' strides never differ
            padded = queries.new_zeros(plan.num_queries, *queries.shape[1:])
            padded[plan.query_offset : plan.query_offset + plan.num_tokens] = queries
            queries = padded
        tiles = [
            self._attend(
                queries[tile.first_query : tile.end_query],
                keys[:, tile.first_key : tile.end_key],
                values[:, tile.first_key : tile.end_key],
                tile.mask,
            )
            for tile in plan.tiles
        ]
        mixed = tiles[0] if len(tiles) == 1 else torch.cat(tiles)
        return mixed[plan.query_offset : plan.query_offset + plan.num_tokens]

    def _attend(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Attend (T, heads, head_dim) to K and V (kv_heads, L, head_dim); return (T, heads·head_dim)."""
        num_queries, num_heads, head_dim = queries.shape
        kv_heads = keys.shape[0]
        if num_queries > _FOLDED_ROWS:
            mixed = functional.scaled_dot_product_attention(
                queries.transpose(0, 1)[None],  # (1, heads, T, head_dim)
                keys[None],
                values[None],
                attn_mask=mask,
                enable_gqa=num_heads != kv_heads,
            )[0]
            return mixed.transpose(0, 1).reshape(num_queries, -1)
        folded = queries.view(num_queries, kv_heads, -1, head_dim).permute(1, 2, 0, 3)  # (kv_heads, group, T, head_dim)
        mixed = functional.scaled_dot_product_attention(
            folded.reshape(1, kv_heads, -1, head_dim), keys[None], values[None], attn_mask=mask
        )
        return mixed.view(kv_heads, -1, num_queries, head_dim).permute(2, 0, 1, 3).reshape(num_queries, -1)
