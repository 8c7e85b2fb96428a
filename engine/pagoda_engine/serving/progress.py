"""How far a start has come, as log lines that `pagoda up` reads: `progress <stage> <percent>%`."""

import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)

_STEP_PERCENT = 10


class ProgressLog:
    """Logs a stage's share whenever it has grown by a tenth, and tells the gate. Called from the loading thread."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._next: dict[str, int] = {}  # by stage: the percent that is worth the next line

    def __call__(self, stage: str, share: float) -> None:
        """Note that `share`, 0..1, of `stage` is done."""
        percent = int(100 * min(max(share, 0.0), 1.0))
        if percent < self._next.get(stage, 0):
            return
        self._next[stage] = 101 if percent == 100 else percent - percent % _STEP_PERCENT + _STEP_PERCENT
        self._say(f"loading {stage} {percent}%")
        _log.info("progress %s %d%%", stage, percent)
