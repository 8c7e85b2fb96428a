"""How long a request would keep a pod busy: guesses in seconds, only ever compared with one another.

The hint stream carries a pod's prefill speed and what loading a token costs it. Loads are priced as shares of
computing; until a pod has measured its own, and for decoding, the shares are guesses.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pagoda_router.requests import BYTES_PER_TOKEN

DEFAULT_PREFILL_TOKENS_PER_SECOND = 400.0  # until any pod has measured its own
DEFAULT_FREE_WORK_SECONDS = 2.0  # until the pod has measured its own
# Loading a token takes this share of computing it, until the pod has measured
RAM_LOAD_SHARE = 0.1
DISK_LOAD_SHARE = 0.3
DECODE_TOKEN_SHARE = 2.0  # generating a token inside a batch costs as much as this many prompt tokens
_MIN_BYTES_PER_TOKEN, _MAX_BYTES_PER_TOKEN = 1.0, 16.0


@dataclass(frozen=True)
class Match:
    """What a pod holds of a request's prefix: `device_tokens`, the last `disk_tokens` on disk, between them RAM."""

    tokens: int = 0
    device_tokens: int = 0
    position: int = 0
    """Bytes of the canonical stream that the tokens stand for at most."""
    disk_tokens: int = 0

    @property
    def above_disk_tokens(self) -> int:
        """How many tokens lie on the device or in RAM."""
        return self.tokens - self.disk_tokens


NO_MATCH = Match()


@dataclass(frozen=True)
class LoadShares:
    """What loading a token costs a pod, as shares of computing it: `0 <= ram <= disk <= 1`.

    Never more than 1: what loads more slowly than it can be computed is computed.
    """

    ram: float = RAM_LOAD_SHARE
    disk: float = DISK_LOAD_SHARE

    def saved_tokens(self, match: Match, common: Match = NO_MATCH) -> float:
        """Return how many tokens of computing `match` saves beyond what `common` would save on the same pod."""
        return (
            self.ram * (match.device_tokens - common.device_tokens)
            + (self.disk - self.ram) * (match.above_disk_tokens - common.above_disk_tokens)
            + (1.0 - self.disk) * (match.tokens - common.tokens)
        )


NOT_MEASURED = LoadShares()


def load_shares(
    ram_seconds_per_token: float, disk_seconds_per_token: float, prefill_tokens_per_second: float
) -> LoadShares:
    """Return a pod's shares by what it has measured (0: not yet)."""
    ram = min(1.0, ram_seconds_per_token * prefill_tokens_per_second) or RAM_LOAD_SHARE
    disk = min(1.0, disk_seconds_per_token * prefill_tokens_per_second) or DISK_LOAD_SHARE
    return LoadShares(ram, max(ram, disk))


def common_match(matches: Sequence[Match]) -> Match:
    """Return what all of `matches` hold at least, tier by tier."""
    tokens = min(match.tokens for match in matches)
    above_disk = min(match.above_disk_tokens for match in matches)
    device = min(match.device_tokens for match in matches)
    return Match(tokens, device, disk_tokens=tokens - above_disk)


def prompt_tokens(num_bytes: int, best: Match) -> int:
    """Guess the tokens of a prompt of `num_bytes`, by the bytes per token of the longest known prefix."""
    if best.tokens == 0 or best.position == 0:
        return max(1, round(num_bytes / BYTES_PER_TOKEN))
    bytes_per_token = min(max(best.position / best.tokens, _MIN_BYTES_PER_TOKEN), _MAX_BYTES_PER_TOKEN)
    return best.tokens + max(1, round(max(0, num_bytes - best.position) / bytes_per_token))


def predicted_seconds(
    num_prompt_tokens: int,
    num_decode_tokens: int,
    match: Match,
    prefill_tokens_per_second: float,
    shares: LoadShares,
) -> float:
    """Return the work of a request on a pod that holds `match` of it."""
    computed = max(1.0, num_prompt_tokens - shares.saved_tokens(match))
    return (computed + num_decode_tokens * DECODE_TOKEN_SHARE) / prefill_tokens_per_second
