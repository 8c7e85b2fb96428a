"""How fast this engine computes prompts, fitted while it works: T(n, p) = n / R + kappa * n * (p + n / 2).

n tokens after p earlier ones; the second term is attention. Decayed least squares over steps that are mostly prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_DECAY = 0.95  # per step: about the last 20 count
_MIN_TOKENS = 16  # shorter steps measure overhead


@dataclass(frozen=True)
class ComputePrice:
    """What computing costs, as fitted at one moment."""

    token_seconds: float  # 1 / R
    pair_seconds: float = 0.0  # kappa: for each token and each token before it

    def seconds(self, num_tokens: int, num_earlier: int) -> float:
        """Return how long computing would take."""
        return self.token_seconds * num_tokens + self.pair_seconds * num_tokens * (num_earlier + num_tokens / 2)


class Throughput:
    """The fit. Everything is None or zero until something was measured."""

    def __init__(self) -> None:
        self._xx = self._xy = self._yy = self._xt = self._yt = 0.0

    def record(self, chunks: Sequence[tuple[int, int]], seconds: float) -> None:
        """Note a step that computed chunks of (num_tokens, num_earlier_tokens)."""
        prompts = [(num, earlier) for num, earlier in chunks if num > 1]
        num_tokens = sum(num for num, _ in prompts)
        if seconds <= 0 or num_tokens < _MIN_TOKENS or num_tokens < len(chunks) - len(prompts):
            return
        x = float(num_tokens)
        y = sum(num * (earlier + num / 2) for num, earlier in prompts)
        self._xx = _DECAY * self._xx + x * x
        self._xy = _DECAY * self._xy + x * y
        self._yy = _DECAY * self._yy + y * y
        self._xt = _DECAY * self._xt + x * seconds
        self._yt = _DECAY * self._yt + y * seconds

    @property
    def tokens_per_second(self) -> float:
        """R, or 0 while unknown."""
        per_token, _ = self._coefficients()
        return 1 / per_token if per_token > 0 else 0.0

    def seconds(self, num_tokens: int, num_earlier: int) -> float | None:
        """Return how long computing would take, or None while unknown."""
        price = self.price()
        return None if price is None else price.seconds(num_tokens, num_earlier)

    def price(self) -> ComputePrice | None:
        """Return the fit as it is now, or None while nothing was measured."""
        return ComputePrice(*self._coefficients()) if self._xx else None

    def _coefficients(self) -> tuple[float, float]:
        """1/R and kappa, neither negative: if the two cannot be told apart, all is put on the tokens."""
        if not self._xx:
            return 0.0, 0.0
        determinant = self._xx * self._yy - self._xy * self._xy
        if determinant > 1e-6 * self._xx * self._yy:
            per_token = (self._xt * self._yy - self._yt * self._xy) / determinant
            kappa = (self._yt * self._xx - self._xt * self._xy) / determinant
            if per_token > 0 and kappa > 0:
                return per_token, kappa
        return self._xt / self._xx, 0.0
