"""How fast this engine computes prompts, fitted while it works: T(n, p) = n / R + kappa * n * (p + n / 2).

n tokens after p earlier ones; the second term is attention. Decayed least squares over steps that are mostly prompts.
"""

from collections.abc import Sequence

_DECAY = 0.95  # per step: about the last 20 count
_MIN_TOKENS = 16  # shorter steps measure overhead


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
        if not self._xx:
            return None
        per_token, kappa = self._coefficients()
        return per_token * num_tokens + kappa * num_tokens * (num_earlier + num_tokens / 2)

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
