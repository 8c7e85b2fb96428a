"""The paged KV tensor: block-major, one page contiguous over all layers, so that a block moves in one copy.

    page p = (layers, 2, kv_heads, block_tokens, head_dim), K before V

Who owns which page is the scheduler's business; this file moves bytes. Two flat views of the same memory serve the
decoder: *block rows* of block_tokens·head_dim elements (reading) and *token rows* of head_dim elements (writing). Their
indices are computed once a step for layer 0; a layer is a fixed offset into the view.
"""

import numpy as np
import numpy.typing as npt
import torch

from pagoda_engine.model.config import DecoderConfig
from pagoda_engine.model.errors import CapacityError

KV_DTYPES = {"Float32": torch.float32, "BFloat16": torch.bfloat16}
_WORD_BYTES = 8  # copies go by 64-bit words: byte-wise they are ten times slower


def payload_bytes(config: DecoderConfig, block_tokens: int, dtype: torch.dtype) -> int:
    """Return the KV bytes of one block, all layers."""
    return config.kv_values_per_token * block_tokens * dtype.itemsize


class PagedKV:
    """`num_pages` pages on one device. Copies are safe from any thread as long as nobody writes that page meanwhile."""

    def __init__(
        self, config: DecoderConfig, *, num_pages: int, block_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_pages = num_pages
        self.block_tokens = block_tokens
        self.payload_bytes = payload_bytes(config, block_tokens, dtype)
        if self.payload_bytes % _WORD_BYTES:
            raise CapacityError(f"a block of {self.payload_bytes} bytes is not a multiple of {_WORD_BYTES}")
        self._rows_per_layer = 2 * config.num_kv_heads  # block rows of one layer in one page
        self._rows_per_page = config.num_layers * self._rows_per_layer
        self._kv_heads, self._head_dim = config.num_kv_heads, config.head_dim
        shape = (num_pages, config.num_layers, 2, config.num_kv_heads, block_tokens, config.head_dim)
        # Filled, not only reserved: memory that is not there must show at start and not under load.
        self._pages = torch.empty(shape, dtype=dtype, device=device).fill_(0)
        self._block_rows = self._pages.view(-1, block_tokens * config.head_dim)
        self._token_rows = self._pages.view(-1, config.head_dim)
        self._words = self._pages.view(num_pages, -1).view(torch.int64)  # (P, payload_bytes / 8)
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
        """Copy a page into `destination`, a writable buffer of `payload_bytes`; complete on return."""
        np.copyto(self._buffer(destination), self._page_words(page).numpy())

    def copy_in(self, page: int, source: memoryview) -> None:
        """Fill a page from `source`, a buffer of `payload_bytes`; complete on return."""
        words = self._buffer(source)
        if self._on_cpu:
            np.copyto(self._words[page].numpy(), words)
        else:
            self._words[page].copy_(torch.from_numpy(words.copy()))
            torch.cuda.synchronize(self._words.device)

    def _page_words(self, page: int) -> torch.Tensor:
        return self._words[page] if self._on_cpu else self._words[page].cpu()

    def _buffer(self, buffer: memoryview) -> npt.NDArray[np.int64]:
        assert buffer.nbytes == self.payload_bytes, f"expected {self.payload_bytes} bytes, got {buffer.nbytes}"
        return np.frombuffer(buffer, np.int64)

    def poison(self, page: int) -> None:
        """Fill a page with NaN: whoever then reads it without having written it produces NaN. For tests."""
        self._pages[page] = float("nan")
