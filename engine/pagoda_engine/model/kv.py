"""The paged KV tensor: block-major, one page contiguous over all layers, so that a block moves in one copy.

    page p = (layers, 2, kv_heads, block_tokens, head_dim), K before V

Who owns which page is the scheduler's business; this file moves bytes. Two flat views of the same memory serve the
decoder: *block rows* of block_tokens·head_dim elements (reading) and *token rows* of head_dim elements (writing). Their
indices are computed once a step for layer 0; a layer is a fixed offset into the view. Below the device a page is what
its codec makes of it (`codecs/`).
"""

import numpy as np
import torch

from pagoda_engine.model.codecs.interface import PAGE_DTYPES, Codec, PageShape
from pagoda_engine.model.config import DecoderConfig

KV_DTYPES = PAGE_DTYPES


def page_shape(config: DecoderConfig, block_tokens: int, dtype: torch.dtype) -> PageShape:
    """Return what one page of a model is made of."""
    return PageShape(config.num_layers, config.num_kv_heads, block_tokens, config.head_dim, dtype)


class PagedKV:
    """`num_pages` pages on one device. Copies are safe from any thread as long as nobody writes that page meanwhile."""

    def __init__(self, shape: PageShape, codec: Codec, *, num_pages: int, device: torch.device) -> None:
        """Fill `num_pages` pages of `shape` with zeros; `codec` says what they look like below the device."""
        self.num_pages = num_pages
        self.block_tokens = shape.block_tokens
        self.shape = shape
        self.codec = codec
        self.payload_bytes = codec.payload_bytes
        self._rows_per_layer = 2 * shape.num_kv_heads  # block rows of one layer in one page
        self._rows_per_page = shape.num_layers * self._rows_per_layer
        self._kv_heads, self._head_dim = shape.num_kv_heads, shape.head_dim
        # Filled, not only reserved: memory that is not there must show at start and not under load.
        self._pages = torch.empty((num_pages, *shape.sizes), dtype=shape.dtype, device=device).fill_(0)
        self._block_rows = self._pages.view(-1, shape.block_tokens * shape.head_dim)
        self._token_rows = self._pages.view(-1, shape.head_dim)
        self._on_cpu = device.type == "cpu"

    # ---- the decoder's side ----

    def block_index(self, pages: torch.Tensor) -> torch.Tensor:
        """Return layer 0's block rows of `pages` (n,), ordered K/V, head, page: (2·kv_heads·n,)."""
        planes = torch.arange(self._rows_per_layer, device=pages.device)
        return (pages[None, :] * self._rows_per_page + planes[:, None]).reshape(-1)

    def token_index(self, pages: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Return layer 0's token rows of tokens at `offsets` (n,) within `pages` (n,), ordered token, K/V, head."""
        planes = torch.arange(self._rows_per_layer, device=pages.device)
        block_rows = pages[:, None] * self._rows_per_page + planes[None, :]
        return (block_rows * self.block_tokens + offsets[:, None]).reshape(-1)

    def gather(self, layer: int, block_index: torch.Tensor) -> torch.Tensor:
        """Return a copy of one layer's K and V, (2, kv_heads, n·block_tokens, head_dim)."""
        rows = self._block_rows[layer * self._rows_per_layer :].index_select(0, block_index)
        return rows.view(2, self._kv_heads, -1, self._head_dim)

    def write(self, layer: int, token_index: torch.Tensor, values: torch.Tensor) -> None:
        """Store one layer's K and V of new tokens, `values` (n, 2·kv_heads, head_dim), K heads before V heads."""
        rows = self._token_rows[layer * self._rows_per_layer * self.block_tokens :]
        rows.index_copy_(0, token_index, values.reshape(-1, self._head_dim))

    # ---- the tiers' side ----

    def copy_out(self, page: int, destination: memoryview) -> None:
        """Encode a page into `destination`, a writable buffer of `payload_bytes`; complete on return."""
        self._check(destination)
        payload = torch.from_numpy(np.frombuffer(destination, np.uint8))
        if self._on_cpu:
            self.codec.encode(self._pages[page : page + 1], payload[None])
        else:
            encoded = torch.empty(1, self.payload_bytes, dtype=torch.uint8, device=self._pages.device)
            self.codec.encode(self._pages[page : page + 1], encoded)
            payload.copy_(encoded[0])  # waits for the device

    def copy_in(self, page: int, source: memoryview) -> None:
        """Decode `source`, a buffer of `payload_bytes`, into a page; complete on return."""
        self._check(source)
        # torch takes no read-only memory, not even to read from it
        payload = torch.from_numpy(np.frombuffer(bytearray(source) if source.readonly else source, np.uint8))
        if self._on_cpu:
            self.codec.decode(payload[None], self._pages[page : page + 1])
        else:
            self.codec.decode(payload[None].to(self._pages.device), self._pages[page : page + 1])
            torch.cuda.synchronize(self._pages.device)

    def _check(self, buffer: memoryview) -> None:
        assert buffer.nbytes == self.payload_bytes, f"expected {self.payload_bytes} bytes, got {buffer.nbytes}"

    def poison(self, page: int) -> None:
        """Fill a page with NaN: whoever then reads it without having written it produces NaN. For tests."""
        self._pages[page] = float("nan")
