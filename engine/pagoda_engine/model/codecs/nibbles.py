"""Two 4-bit codes to a byte: the first half of a row's channels in the low nibbles, the second in the high ones.

Halves, not neighbours: both are then contiguous runs, in torch as in a kernel. On a CPU the runs are short; so bytes
are moved and shifted by the widest words that a run is made of, a code having room to move within its byte.
"""

import torch

from pagoda_engine.model.codecs.interface import PageShape
from pagoda_engine.model.errors import UnsupportedModelError

_WORDS = (torch.int64, torch.int32, torch.int16, torch.int8)


def check_channels(name: str, shape: PageShape, multiple: int) -> None:
    """Refuse shapes that a codec cannot pack.

    Raises:
        UnsupportedModelError: head_dim is no multiple of `multiple`.
    """
    if shape.head_dim % multiple:
        raise UnsupportedModelError(
            f"cache.codec {name} needs a head_dim that is a multiple of {multiple}; this model's is {shape.head_dim}"
        )


class Nibbles:
    """Codes, int8 of the pages' sizes, and their halves as words."""

    def __init__(self, pages: torch.Tensor) -> None:
        self.codes = torch.empty(pages.shape, dtype=torch.int8, device=pages.device)
        half = pages.shape[-1] // 2
        self._word = next(word for word in _WORDS if half % word.itemsize == 0)
        self._first, self._second = self.codes.view(self._word).chunk(2, -1)
        self._four = torch.tensor(4, dtype=self._word)

    def pack(self, packed: torch.Tensor) -> None:
        """Write `codes`, 0 .. 15, as bytes (..., D / 2)."""
        # A sum carries nothing from byte to byte here, and takes one pass where shift and union take two.
        torch.add(self._first, self._second, alpha=16, out=packed.view(self._word))

    def unpack(self, packed: torch.Tensor) -> None:
        """Read the codes in bytes (..., D / 2) to the low nibbles of `codes`; the high ones are anything."""
        words = packed.view(self._word)
        self._first.copy_(words)
        torch.bitwise_right_shift(words, self._four, out=self._second)
