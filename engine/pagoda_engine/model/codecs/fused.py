"""Whether fused kernels do the work: where KV lies on a GPU and Triton is there. Else torch does it, byte for byte."""

import importlib.util

import torch

_HAS_TRITON = importlib.util.find_spec("triton") is not None


def is_fused(pages: torch.Tensor) -> bool:
    """Return whether the Triton kernels take these pages; only then may `triton_*` be imported."""
    return _HAS_TRITON and pages.is_cuda
