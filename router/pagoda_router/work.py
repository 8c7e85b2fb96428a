"""How long a request would keep a pod busy: guesses in seconds, only ever compared with one another.

The hint stream carries a pod's prefill speed but not its load speed or decode speed, so these two are shares of it.
"""

from dataclasses import dataclass

from pagoda_router.requests import BYTES_PER_TOKEN

DEFAULT_PREFILL_TOKENS_PER_SECOND = 400.0  # until any pod has measured its own
DEFAULT_FREE_WORK_SECONDS = 2.0  # until the pod has measured its own
RAM_LOAD_SHARE = 0.1  # loading a token from RAM takes this share of computing it
DECODE_TOKEN_SHARE = 2.0  # generating a token inside a batch costs as much as this many prompt tokens
_MIN_BYTES_PER_TOKEN, _MAX_BYTES_PER_TOKEN = 1.0, 16.0


@dataclass(frozen=True)
class Match:
    """What a pod holds of a request's prefix: `device_tokens` on the device, the rest of `tokens` in RAM."""

    tokens: int = 0
    device_tokens: int = 0
    position: int = 0
    """Bytes of the canonical stream that the tokens stand for at most."""

    @property
    def saved_tokens(self) -> float:
        """How many tokens of computing the match saves."""
        return self.device_tokens + (self.tokens - self.device_tokens) * (1.0 - RAM_LOAD_SHARE)


NO_MATCH = Match()


def prompt_tokens(num_bytes: int, best: Match) -> int:
    """Guess the tokens of a prompt of `num_bytes`, by the bytes per token of the longest known prefix."""
    if best.tokens == 0 or best.position == 0:
        return max(1, round(num_bytes / BYTES_PER_TOKEN))
    bytes_per_token = min(max(best.position / best.tokens, _MIN_BYTES_PER_TOKEN), _MAX_BYTES_PER_TOKEN)
    return best.tokens + max(1, round(max(0, num_bytes - best.position) / bytes_per_token))


def predicted_seconds(
    num_prompt_tokens: int, num_decode_tokens: int, match: Match, prefill_tokens_per_second: float
) -> float:
    """Return the work of a request on a pod that holds `match` of it."""
    computed = max(1.0, num_prompt_tokens - match.saved_tokens)
    return (computed + num_decode_tokens * DECODE_TOKEN_SHARE) / prefill_tokens_per_second
