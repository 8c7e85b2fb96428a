"""Where the parts of a payload lie: sections one behind the other, each beginning at a multiple of 8 bytes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from pagoda_engine.model.codecs.interface import SECTION_BYTES


@dataclass(frozen=True)
class _Section:
    start: int  # bytes
    stop: int  # bytes, without the padding behind
    sizes: tuple[int, ...]
    dtype: torch.dtype


class PayloadLayout:
    """Named tensors within the bytes of a payload, in the order given: name → (sizes, dtype)."""

    def __init__(self, sections: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
        self._sections: dict[str, _Section] = {}
        self._gaps: list[tuple[int, int]] = []
        at = 0
        for name, (sizes, dtype) in sections.items():
            stop = at + math.prod(sizes) * dtype.itemsize
            self._sections[name] = _Section(at, stop, sizes, dtype)
            at = -(-stop // SECTION_BYTES) * SECTION_BYTES
            if at > stop:
                self._gaps.append((stop, at))
        self.num_bytes = at

    def view(self, payloads: torch.Tensor, name: str) -> torch.Tensor:
        """Return one section of `payloads` (n, num_bytes) uint8 as (n, *sizes); writes go through."""
        section = self._sections[name]
        part = payloads.narrow(1, section.start, section.stop - section.start).view(section.dtype)
        return part.view(payloads.shape[0], *section.sizes)

    def clear_gaps(self, payloads: torch.Tensor) -> None:
        """Zero the bytes between sections."""
        for start, stop in self._gaps:
            payloads[:, start:stop] = 0
