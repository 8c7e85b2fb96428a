"""Choosing tokens. The choice for a sequence is a pure function of its logits, its `Sampling` and the position.

Gumbel-max: the token with the highest logit/temperature + Gumbel noise is a sample of the softmax (Maddison et al.,
arXiv 1411.0030). The noise of (seed, position, token id) is counter-based: hashed from the three numbers alone, so no
state is kept, and neither batch, process nor preemption changes what a request with a seed says. Each sequence is
worked on by itself for the same reason; greedy ones, which need no noise, go through one argmax.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from pagoda_engine.model.interface import Sampling

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def sample(logits: torch.Tensor, samplings: Sequence[Sampling], positions: Sequence[int]) -> list[int]:
    """Return one token id per row of fp32 `logits` (N, vocab).

    `positions` are the noise's counters: the position the sampled token will have. Greedy takes the lowest id on ties.
    """
    chosen = logits.argmax(dim=-1).tolist()
    for row, (sampling, position) in enumerate(zip(samplings, positions, strict=True)):
        if sampling.temperature > 0:
            chosen[row] = _sample_row(logits[row].cpu().numpy(), sampling, position)
    return chosen


def _sample_row(logits: npt.NDArray[np.float32], sampling: Sampling, position: int) -> int:
    scaled = logits.astype(np.float64) / sampling.temperature
    candidates = _candidates(scaled, sampling.top_k, sampling.top_p)  # ascending ids
    scores = scaled[candidates] + gumbel_noise(sampling.seed, position, candidates)
    return int(candidates[int(np.argmax(scores))])


def _candidates(scaled: npt.NDArray[np.float64], top_k: int, top_p: float) -> npt.NDArray[np.int64]:
    """Return the ids that top-k, then top-p of what it left, keep; ascending. Of equal logits lower ids go first."""
    limited = 0 < top_k < scaled.size
    if not limited and top_p >= 1.0:
        return np.arange(scaled.size)
    order = np.argsort(-scaled, kind="stable")
    if limited:
        order = order[:top_k]
    if top_p < 1.0:
        weights = np.exp(scaled[order] - scaled[order[0]])
        before = np.cumsum(weights) - weights  # the probability of all that is more likely
        order = order[: max(1, int(np.count_nonzero(before < top_p * weights.sum())))]
    return np.sort(order)


def gumbel_noise(seed: int, position: int, token_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return standard Gumbel noise for each token id; the same for ever for the same three numbers."""
    stream = _mix(_mix((seed & _MASK) + _GOLDEN) ^ _mix(position * _GOLDEN + 1))
    counters = token_ids.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(stream)
    bits = _mix_array(counters) >> np.uint64(11)
    uniform = (bits.astype(np.float64) + 0.5) * 2.0**-53  # in (0, 1), never an end
    return np.asarray(-np.log(-np.log(uniform)))


def _mix(value: int) -> int:
    """SplitMix64's finaliser (Steele et al., 2014)."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _mix_array(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(values ^ (values >> np.uint64(31)), dtype=np.uint64)
