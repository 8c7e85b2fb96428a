"""How much work an engine holds, in seconds, as routers want to know it."""

from collections.abc import Iterable

from pagoda_engine.core.request import Request
from pagoda_engine.core.throughput import Throughput

_WEIGHT = 0.1  # of a new observation
_SLOWDOWN = 0.2  # by which others may be slowed without being hurt


class Workload:
    """Running means of what requests cost here. All zero until something was measured."""

    def __init__(self, throughput: Throughput) -> None:
        self._throughput = throughput
        self._request_seconds: float | None = None
        self._output_tokens: float | None = None
        self._decode_token_seconds: float | None = None

    def record_decodes(self, num_tokens: int, seconds: float) -> None:
        """Note a step that only decoded."""
        if num_tokens:
            self._decode_token_seconds = _mean(self._decode_token_seconds, seconds / num_tokens)

    def record_request(self, num_generated: int, seconds: float) -> None:
        """Note a request that has ended by itself, `seconds` after its arrival."""
        self._output_tokens = _mean(self._output_tokens, num_generated)
        self._request_seconds = _mean(self._request_seconds, seconds)

    def outstanding_seconds(self, requests: Iterable[Request]) -> float:
        """Return the predicted work of `requests`: prompts at the measured speed, outputs of the usual length."""
        num_prompt_tokens, num_output_tokens = 0, 0.0
        for request in requests:
            num_prompt_tokens += max(0, len(request.tokens) - request.num_computed - 1)
            usual = request.num_left if self._output_tokens is None else self._output_tokens - request.num_generated
            num_output_tokens += min(request.num_left, max(1.0, usual))
        speed = self._throughput.tokens_per_second
        prompt_seconds = num_prompt_tokens / speed if speed else 0.0
        return prompt_seconds + num_output_tokens * (self._decode_token_seconds or 0.0)

    @property
    def free_seconds(self) -> float:
        """Work that may be added before the usual request takes a fifth longer."""
        return _SLOWDOWN * (self._request_seconds or 0.0)


def _mean(old: float | None, value: float) -> float:
    return value if old is None else old + _WEIGHT * (value - old)
