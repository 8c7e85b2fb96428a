"""Two 4-bit codes to a byte: the first half of a row's channels in the low nibbles, the second in the high ones.

Halves, not neighbours: both are then contiguous runs, in torch as in a kernel.
"""

import torch

from pagoda_engine.model.codecs.interface import PageShape
from pagoda_engine.model.errors import UnsupportedModelError


def check_channels(name: str, shape: PageShape, multiple: int) -> None:
    """Refuse shapes that a codec cannot pack.

    Raises:
        UnsupportedModelError: head_dim is no multiple of `multiple`.
    """
    if shape.head_dim % multiple:
        raise UnsupportedModelError(
            f"cache.codec {name} needs a head_dim that is a multiple of {multiple}; this model's is {shape.head_dim}"
        )


def pack(codes: torch.Tensor, packed: torch.Tensor) -> None:
    """Write whole numbers 0 .. 15 in fp32 (..., D) as bytes (..., D / 2); `codes` is scribbled on."""
    half = codes.shape[-1] // 2
    # Exact in fp32, and no conversion more than there must be.
    packed.copy_(codes[..., half:].mul_(16.0).add_(codes[..., :half]))


def unpack(packed: torch.Tensor, codes: torch.Tensor) -> None:
    """Write the codes in bytes (..., D / 2) as fp32 (..., D)."""
    half = packed.shape[-1]
    codes[..., :half].copy_(packed & 15)
    codes[..., half:].copy_(packed >> 4)
