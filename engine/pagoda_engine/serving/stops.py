"""Stop strings over a text that arrives in pieces. Pure.

Rules: the result does not depend on how the text is cut into pieces, and no character that may yet turn out to belong
to a stop string is let out. The stop string that is complete first wins; of two complete at once, the longer.
"""

from collections.abc import Sequence


class StopFilter:
    """Lets text through up to the first stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.is_hit = False

    def push(self, piece: str) -> str:
        """Return what may be shown after `piece`; once `is_hit`, the rest is swallowed."""
        if self.is_hit or not self._stops:
            return "" if self.is_hit else piece
        text = self._held + piece
        hits = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if hits:
            self.is_hit = True
            self._held = ""
            return text[: min(hits)[1]]
        held = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """Return what was held back, when the text has ended without a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
