"""Matrix products of a decoder, and how rows are cut so that a row's result never depends on its neighbours.

Measured (docs/lab.md): MKL takes another kernel for 1, 2 and ≥ 4 rows, oneDNN for 1 row; so the same row in a batch of
another size may differ in its last bits. Within one shape both compute each row alike wherever it stands. *Exact mode*
therefore calls everything that works on rows with exactly `EXACT_ROWS` of them, as one kernel per matrix. oneDNN with
packed weights runs at its full speed from 16 rows on, so fixed tiles cost little.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch.nn import functional

EXACT_ROWS = 16  # rows of every call in exact mode
# Elementwise kernels split work among threads above 32,768 elements, and may compute the elements at a seam by scalar
# code (another exp): in exact mode no call is larger.
SERIAL_ELEMENTS = 32768

Linear = Callable[[torch.Tensor], torch.Tensor]  # (N, in) -> (N, out)


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None, rows: int) -> Linear:
    """Return `x -> x @ weight.T + bias`, with the weight packed for oneDNN where that is possible.

    `weight` is (out, in); `rows` is the number of rows to pack for. A packed weight does not keep `weight` alive.
    """
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and _packing_works():
        packed = _pack(weight, rows)
        return lambda x: _packed_product(x, packed, bias)
    return lambda x: functional.linear(x, weight, bias)


# The operators that torch's own compiler emits for a linear with constant weight. They are not public, so they are
# tried once, and a build without them, or with others under their names, means plain linears.


def _pack(weight: torch.Tensor, rows: int) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return packed


def _packed_product(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return product


@cache
def _packing_works() -> bool:
    weight = torch.arange(64 * 32, dtype=torch.float32).view(64, 32) % 7 - 3  # small whole numbers: sums are exact
    x, bias = weight[:EXACT_ROWS].clone(), weight[:, 0].clone()
    try:
        product = _packed_product(x, _pack(weight, EXACT_ROWS), bias)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return torch.equal(product, functional.linear(x, weight, bias))


def by_tiles(function: Callable[..., torch.Tensor], rows_per_call: int | None, *tensors: torch.Tensor) -> torch.Tensor:
    """Apply a row-wise `function` to tensors (N, …) in calls of `rows_per_call` rows; None is one call for all.

    N must be a multiple of `rows_per_call`.
    """
    num_rows = tensors[0].shape[0]
    if rows_per_call is None or num_rows == rows_per_call:
        return function(*tensors)
    assert num_rows % rows_per_call == 0, "rows must be padded to whole tiles"
    tiles = [torch.split(tensor, rows_per_call) for tensor in tensors]
    return torch.cat([function(*tile) for tile in zip(*tiles, strict=True)])


def silu(x: torch.Tensor, *, exact: bool) -> torch.Tensor:
    """Return x·sigmoid(x) of `x` (N, D); in exact mode in pieces no thread seam can cut."""
    if not exact or x.numel() <= SERIAL_ELEMENTS:
        return functional.silu(x)
    rows = max(1, SERIAL_ELEMENTS // x.shape[1])
    return torch.cat([functional.silu(piece) for piece in torch.split(x, rows)])
