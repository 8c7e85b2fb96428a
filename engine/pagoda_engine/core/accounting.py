"""Where each prompt token came from, counted once.

Rules: a position counts when the request's first token exists, under the source that finally supplied it. What the
request itself once computed stays `compute`: after a preemption it may find its own blocks again, on the device or
below, and that is no cache hit (it would credit the cache with work that was done twice). Every supply of a position
that had been supplied before is a replay.
"""

from collections import Counter
from collections.abc import Mapping

from pagoda_protocol.metrics import SOURCES

COMPUTE, DEVICE = SOURCES[0], SOURCES[1]

# By new code: a translation that puts it over every old one but `compute` (1).
_OVERWRITE = [bytes(1 if old == 1 else new for old in range(256)) for new in range(1 + len(SOURCES))]


class Ledger:
    """The sources of one request's tokens, by position."""

    def __init__(self, num_prompt: int) -> None:
        self._num_prompt = num_prompt
        self._codes = bytearray(num_prompt)  # 0: not supplied yet, else 1 + index into SOURCES; grows with the output

    def record(self, start: int, stop: int, source: str) -> int:
        """Note that positions [start, stop) were supplied by `source`; return how many of them were replays."""
        if stop > len(self._codes):
            self._codes.extend(bytes(stop - len(self._codes)))
        code = 1 + SOURCES.index(source)
        piece = self._codes[start:stop]
        self._codes[start:stop] = piece.translate(_OVERWRITE[code])
        return len(piece) - piece.count(0)

    def sources(self) -> Mapping[str, int]:
        """Return the prompt's tokens by source; their sum is the prompt's length once all of it was supplied."""
        counts = Counter(self._codes[: self._num_prompt])
        return {source: counts[1 + index] for index, source in enumerate(SOURCES)}
