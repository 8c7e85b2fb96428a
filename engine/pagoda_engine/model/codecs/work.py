"""What a thread scribbles on while it codes pages, kept for its next pages of the same kind, views included.

On a CPU a view costs what a sum over a small tensor costs, and a codec needs dozens: they are made once.
"""

import threading
from typing import TypeVar

import torch

_kept = threading.local()
AnyWork = TypeVar("AnyWork", bound="Work")
REDUCED = (-2, -1)  # the axes of a plane that K's and V's measures are taken over


class Planes:
    """A tensor of the pages' sizes (n, L, 2, H, T, D), and its K and V (n, L, H, T, D)."""

    def __init__(self, pages: torch.Tensor, dtype: torch.dtype = torch.float32) -> None:
        self.all = torch.empty(pages.shape, dtype=dtype, device=pages.device)
        self.parts = self.all.unbind(2)


class Measures:
    """A tensor (n, L, H, D + T): of K's channels, then of V's tokens; and both, as they are and over their planes."""

    def __init__(self, tensor: torch.Tensor, channels: int) -> None:
        self.all = tensor
        keys, values = tensor[..., :channels], tensor[..., channels:]
        self.parts = keys, values
        self.spread = keys.unsqueeze(-2), values.unsqueeze(-1)


def empty_measures(pages: torch.Tensor, dtype: torch.dtype = torch.float32) -> Measures:
    """Return measures of pages."""
    return Measures(torch.empty(measure_sizes(pages), dtype=dtype, device=pages.device), pages.shape[-1])


def measure_sizes(pages: torch.Tensor) -> tuple[int, ...]:
    """Return (n, L, H, D + T)."""
    n, layers, _, heads, tokens, channels = pages.shape
    return n, layers, heads, channels + tokens


class Work:
    """The tensors of one codec for one kind of pages; `floats` holds fp32 of the pages' sizes."""

    def __init__(self, pages: torch.Tensor) -> None:
        self.made_for = _kind(pages)
        self.floats = Planes(pages)

    def widened(self, pages: torch.Tensor) -> torch.Tensor:
        """Return pages in fp32: themselves, or in `floats`. To convert within a product is slower."""
        return pages if pages.dtype == torch.float32 else self.floats.all.copy_(pages)

    def target(self, pages: torch.Tensor) -> torch.Tensor:
        """Return where fp32 results go: to the pages themselves, or to `floats`, from where the caller copies them."""
        return pages if pages.dtype == torch.float32 else self.floats.all


def work_for(kind: type[AnyWork], pages: torch.Tensor) -> AnyWork:
    """Return this thread's `kind` for such pages; what is in it is undefined."""
    all_kept: dict[str, Work] = _kept.__dict__
    found = all_kept.get(kind.__qualname__)
    if not isinstance(found, kind) or found.made_for != _kind(pages):
        found = all_kept[kind.__qualname__] = kind(pages)
    return found


def _kind(pages: torch.Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return pages.shape, pages.dtype, pages.device
