"""Rotary position embedding (RoFormer, arXiv 2104.09864) in the pairing of Hugging Face: (i, i + head_dim/2).

The table is computed once, and step by step in fp32 as transformers does it: an angle of position 3,000 computed more
exactly would differ from the oracle's by more than all other rounding together.
"""

import math

import torch

from pagoda_engine.model.config import DecoderConfig, RopeScaling
from pagoda_engine.model.errors import CheckpointError


def rotary_frequencies(config: DecoderConfig) -> torch.Tensor:
    """Return radians per position of each pair, fp32, (head_dim/2,).

    Raises:
        CheckpointError: the file brought factors of another number.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    plain = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    if scaling.kind == "factors":
        if len(scaling.factors) != len(plain):
            raise CheckpointError(f"rope factors: expected {len(plain)}, got {len(scaling.factors)}")
        return plain / torch.tensor(scaling.factors)
    return _llama3(plain, scaling)


def _llama3(plain: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Keep short wavelengths, divide long ones by `factor`, blend between (Llama 3.1's reference code)."""
    wavelengths = 2 * math.pi / plain
    low = scaling.original_max_position / scaling.low_frequency_factor
    high = scaling.original_max_position / scaling.high_frequency_factor
    share = (scaling.original_max_position / wavelengths - scaling.low_frequency_factor) / (
        scaling.high_frequency_factor - scaling.low_frequency_factor
    )
    blended = (1 - share) * plain / scaling.factor + share * plain
    divided = torch.where(wavelengths > low, plain / scaling.factor, plain)
    return torch.where((wavelengths >= high) & (wavelengths <= low), blended, divided)


class RotaryTable:
    """Cosines and sines of positions 0 .. num_positions-1."""

    def __init__(self, config: DecoderConfig, num_positions: int, device: torch.device, dtype: torch.dtype) -> None:
        angles = torch.arange(num_positions).float()[:, None] * rotary_frequencies(config)[None, :]
        # In double precision, so that no vector unit's cosine decides a bit of the KV.
        self._cos = angles.double().cos().to(dtype).to(device)  # (P, head_dim/2)
        self._sin = angles.double().sin().to(dtype).to(device)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin of `positions` (N,), each (N, 1, head_dim/2)."""
        return self._cos.index_select(0, positions)[:, None, :], self._sin.index_select(0, positions)[:, None, :]


def rotate_(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate `heads` (N, H, head_dim) in place by `RotaryTable.at`.

    Multiplications and additions are separate operations: each is rounded as IEEE 754 says, whatever the vector unit,
    so a row's result does not depend on where in the batch it stands.
    """
    first, second = heads.chunk(2, dim=-1)
    rotated_first = first * cos - second * sin
    rotated_second = second * cos + first * sin
    first.copy_(rotated_first)
    second.copy_(rotated_second)
