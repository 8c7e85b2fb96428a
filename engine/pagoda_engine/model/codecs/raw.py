"""Raw: a payload is the page's bytes."""

import numpy as np
import torch

from pagoda_engine.model.codecs.interface import SECTION_BYTES, Codec, PageShape
from pagoda_engine.model.errors import CapacityError


class RawCodec(Codec):
    """Bytes as they are, moved by 64-bit words: byte-wise they are ten times slower.

    Raises:
        CapacityError: a page is no multiple of 8 bytes.
    """

    name = "Raw"
    revision = 1

    def __init__(self, shape: PageShape) -> None:
        self.payload_bytes = shape.page_bytes
        if self.payload_bytes % SECTION_BYTES:
            raise CapacityError(f"a block of {self.payload_bytes} bytes is not a multiple of {SECTION_BYTES}")

    def encode(self, pages: torch.Tensor, payloads: torch.Tensor) -> None:
        """Copy the pages' bytes."""
        _move(_words(pages), _words(payloads))

    def decode(self, payloads: torch.Tensor, pages: torch.Tensor) -> None:
        """Copy the payloads' bytes."""
        _move(_words(payloads), _words(pages))


def _words(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(tensor.shape[0], -1).view(torch.int64)  # (n, payload_bytes / 8)


def _move(source: torch.Tensor, destination: torch.Tensor) -> None:
    if source.device.type == "cpu":
        # On this thread alone: torch would wake its threads, which the step needs.
        np.copyto(destination.numpy(), source.numpy())
    else:
        destination.copy_(source)
