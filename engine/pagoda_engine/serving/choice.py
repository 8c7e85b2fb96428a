"""One choice of an answer: tokens in, text that may be shown out. Pure but for the detokenizer it is given.

Rules: what was let out is never taken back: no half character, no beginning of a stop string. Tokens that come after
the end (the engine learns of a stop string only from us) are dropped.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pagoda_engine.serving.stops import StopFilter


class Detokenizer(Protocol):
    """Turns tokens into text as they come."""

    def feed(self, token_id: int, /) -> str:
        """Return the text that is certain after `token_id`: whole characters only."""

    def finish(self) -> str:
        """Return the text that is left when no token follows."""


@dataclass(frozen=True)
class Delta:
    """What a choice has new to show."""

    index: int
    text: str
    finish: str | None = None  # "stop" | "length"


class Choice:
    """Follows one choice from its first token to its end."""

    def __init__(
        self,
        index: int,
        detokenizer: Detokenizer,
        stops: Sequence[str],
        eos_ids: Collection[int],
        min_tokens: int = 0,
    ) -> None:
        """End at one of `eos_ids` from token number `min_tokens` + 1 on; empty `eos_ids`: never by a token."""
        self.index = index
        self.tokens: list[int] = []  # as the engine generated them, up to the end
        self.finish: str | None = None
        self._pieces: list[str] = []
        self._detokenizer = detokenizer
        self._filter = StopFilter(stops)
        self._eos_ids = eos_ids
        self._min_tokens = min_tokens

    @property
    def text(self) -> str:
        """Everything shown so far."""
        return "".join(self._pieces)

    def push(self, tokens: Iterable[int], finish: str | None = None) -> Delta:
        """Take what the engine sent; `finish` is the engine's reason to end after it."""
        if self.finish is not None:
            return Delta(self.index, "")
        shown = "".join(self._shown(token) for token in tokens if self.finish is None)
        if self.finish is None and finish is not None:
            self.finish = finish
        # A stop string cuts; any other end lets out what was held back, unless that completes a stop string after all.
        if self.finish is not None and not self._filter.is_hit:
            shown += self._filter.push(self._detokenizer.finish())
            if self._filter.is_hit:
                self.finish = "stop"
            shown += self._filter.flush()
        if shown:
            self._pieces.append(shown)
        return Delta(self.index, shown, self.finish)

    def _shown(self, token: int) -> str:
        self.tokens.append(token)
        if token in self._eos_ids and len(self.tokens) > self._min_tokens:
            self.finish = "stop"
            return ""
        shown = self._filter.push(self._detokenizer.feed(token))
        if self._filter.is_hit:
            self.finish = "stop"
        return shown
