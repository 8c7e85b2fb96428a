"""The contract of a codec: pages of KV to payloads and back.

    pages     (n, layers, 2, kv_heads, block_tokens, head_dim), K before V, Float32 or BFloat16
    payloads  (n, payload_bytes) uint8, each a whole block: codes, then what it takes to read them

What every codec keeps:

1. *Reproducible.* A payload is a function of its page's bytes alone: the same for any number of threads, alone or in a
   batch, on any instruction set. So arithmetic is elementwise and rounded once per operation as IEEE 754 says, products
   that a compiler might fuse with a sum are exact, reductions are maxima and minima and never sums.
2. *Stable.* encode(decode(p)) == p for every p that encode wrote: a block that goes up and down any number of times
   is damaged once. The measures of a group are therefore stored in a form that the decoded values give back exactly.
3. *Whole.* Payloads have one fixed size, a multiple of 8; every byte of one is written, padding as zeros.
4. *Loud.* A finite value beyond ±2**120 is held there, and one whose group is smaller than 2**-100 becomes zero (both
   keep the arithmetic away from overflow and from denormals, which machines treat differently). A page with a NaN or an
   infinity decodes to NaN everywhere: what was broken above must not look well below.

A change of what encode writes for any page raises the codec's `revision`, which is part of the namespace: payloads of
another revision are never found. Rule 3 of `self_test.py` makes forgetting it impossible.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

PAGE_DTYPES = {"Float32": torch.float32, "BFloat16": torch.bfloat16}
SECTION_BYTES = 8  # sections of a payload begin at multiples of this
LARGEST = 2.0**120
SMALLEST = 2.0**-100


@dataclass(frozen=True)
class PageShape:
    """What a page is made of."""

    num_layers: int
    num_kv_heads: int
    block_tokens: int
    head_dim: int
    dtype: torch.dtype

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """Return (layers, 2, kv_heads, block_tokens, head_dim)."""
        return (self.num_layers, 2, self.num_kv_heads, self.block_tokens, self.head_dim)

    @property
    def num_values(self) -> int:
        """Return the values of one page."""
        return self.num_layers * 2 * self.num_kv_heads * self.block_tokens * self.head_dim

    @property
    def page_bytes(self) -> int:
        """Return the bytes of one page on the device."""
        return self.num_values * self.dtype.itemsize


class Codec(ABC):
    """One way to write blocks of one shape; thread safe. The head of this file says what holds for all of them."""

    name: ClassVar[str]
    revision: ClassVar[int]
    payload_bytes: int

    @abstractmethod
    def __init__(self, shape: PageShape) -> None: ...

    @abstractmethod
    def encode(self, pages: torch.Tensor, payloads: torch.Tensor) -> None:
        """Write the payload of each page. Reads `pages` only; both on one device, both contiguous per block."""

    @abstractmethod
    def decode(self, payloads: torch.Tensor, pages: torch.Tensor) -> None:
        """Fill each page from its payload, which encode wrote (any other bytes give some values, and no error)."""
