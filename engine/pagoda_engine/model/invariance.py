"""The start-up test of exact mode: does a row's result depend on its place or its neighbours within one call?

Fixed shapes make kernels the same; that one kernel treats all rows of a call alike is a property of the library, which
this test checks on this machine with this model's matrices. If it does not hold, rows are placed by their position
(`Placement.ALIGNED`), which needs nothing but that the same call on the same operands gives the same bytes.
"""

from collections.abc import Callable

import torch

from pagoda_engine.model.decoder import Decoder
from pagoda_engine.model.layout import Placement
from pagoda_engine.model.linear import EXACT_ROWS


def choose_placement(decoder: Decoder, *, dtype: torch.dtype, device: torch.device) -> Placement:
    """Return PACKED if every row-wise function of the decoder passes, else ALIGNED. Takes milliseconds."""
    generator = torch.Generator().manual_seed(0)

    def rows(width: int) -> torch.Tensor:
        return torch.randn(EXACT_ROWS, width, generator=generator).to(device, dtype)

    config = decoder.config
    hidden, mixed = rows(config.hidden_size), rows(config.num_heads * config.head_dim)
    layer = decoder.layers[0]  # all layers have the same shapes, so the same kernels
    free = (
        rows_are_independent(layer.project, hidden)
        and rows_are_independent(layer.finish, hidden, mixed)
        and rows_are_independent(decoder.head, hidden)
    )
    return Placement.PACKED if free else Placement.ALIGNED


def rows_are_independent(function: Callable[..., torch.Tensor], *operands: torch.Tensor) -> bool:
    """Return whether `function` gives each row the same bytes wherever it stands and whatever stands beside it."""
    expected = function(*operands)
    num_rows = expected.shape[0]
    for shift in (0, 1, 3, num_rows // 2):
        moved = function(*(operand.roll(shift, 0) for operand in operands))
        if not torch.equal(moved.roll(-shift, 0), expected):
            return False
    for row in (0, num_rows - 1):
        alone = [torch.zeros_like(operand) for operand in operands]
        for operand, source in zip(alone, operands, strict=True):
            operand[row] = source[row]
        if not torch.equal(function(*alone)[row], expected[row]):
            return False
    return True
