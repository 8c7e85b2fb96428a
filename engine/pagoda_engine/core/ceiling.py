"""The best hit rate that any cache could have had, beside the one there was.

A cache can have a block of a prompt only if an equal address was in an earlier prompt or answer. So what is seen for
the first time *in a prompt* had to be computed by whoever served it, however much memory he had; and so had the tokens
after the prompt's last reusable block. All else is the ceiling:

    ceiling = 1 - (tokens of blocks first seen in a prompt + tokens after the last reusable block) / prompt tokens

Rules: constant memory and a constant cost per block; "earlier" means in the last half to whole window: two counters
take turns, one that remembers the half before and this one, and one that begins with this one. Only what this engine
was asked for counts, so a pool that other engines fill can lift the real rate above its ceiling.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pagoda_engine.core.distinct import DistinctCounter

WINDOW_SECONDS = 3600.0


@dataclass
class _Sums:
    """Prompt tokens of one half."""

    num_prompt: int = 0
    num_hit: int = 0
    unavoidable: float = 0.0


class HitCeiling:
    """Fed by the engine's thread with prompts when they are admitted, blocks when they are there, and hits."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._half_began_at = clock()
        self._seen, self._seen_this_half = DistinctCounter(), DistinctCounter()
        self._previous, self._current = _Sums(), _Sums()

    def prompt(self, addresses: Sequence[bytes], num_tokens: int, block_tokens: int) -> float:
        """A prompt was admitted whose reusable blocks are `addresses`: return its unavoidable tokens, an estimate that
        is right on average and may exceed the prompt's length."""
        self._turn()
        num_new = sum(map(self._see, addresses))
        return num_tokens + block_tokens * (num_new - len(addresses))

    def seen(self, address: bytes) -> None:
        """A block is there, of a prompt or an answer: from now on a cache may have it."""
        self._turn()
        self._see(address)

    def count(self, num_prompt: int, num_hit: int, unavoidable: float) -> None:
        """A prompt's sources are known: `num_hit` of its tokens were not computed."""
        self._turn()
        self._current.num_prompt += num_prompt
        self._current.num_hit += num_hit
        self._current.unavoidable += unavoidable

    @property
    def hit_ratio(self) -> float | None:
        """The share of prompt tokens in the window that came from a cache; None while there were none."""
        self._turn()
        num_prompt = self._previous.num_prompt + self._current.num_prompt
        return (self._previous.num_hit + self._current.num_hit) / num_prompt if num_prompt else None

    @property
    def ceiling_ratio(self) -> float | None:
        """The share that could have; None while there were none."""
        self._turn()
        num_prompt = self._previous.num_prompt + self._current.num_prompt
        if not num_prompt:
            return None
        return min(1.0, max(0.0, 1 - (self._previous.unavoidable + self._current.unavoidable) / num_prompt))

    def seconds_to_wait(self) -> float | None:
        """Return the seconds after which the rates change although nothing is asked; None: they do not."""
        if not self._previous.num_prompt and not self._current.num_prompt:
            return None
        return max(0.0, self._half_began_at + WINDOW_SECONDS / 2 - self._clock())

    def _see(self, address: bytes) -> float:
        self._seen_this_half.add(address)
        return self._seen.add(address)

    def _turn(self) -> None:
        half = WINDOW_SECONDS / 2
        elapsed = self._clock() - self._half_began_at
        if elapsed < half:
            return
        self._half_began_at += elapsed // half * half
        is_next = elapsed < 2 * half
        self._seen = self._seen_this_half if is_next else DistinctCounter()
        self._seen_this_half = DistinctCounter()
        self._previous, self._current = self._current if is_next else _Sums(), _Sums()
