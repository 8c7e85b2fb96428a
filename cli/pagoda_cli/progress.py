"""The lines by which a program tells how far its start has come: `… progress <stage> <percent>%`."""

import re
from dataclasses import dataclass

_LINE = re.compile(r"\bprogress (\S{1,40}) (\d{1,3})%")
_STEP_PERCENT = 25


@dataclass(frozen=True)
class Progress:
    """How far one stage has come."""

    stage: str
    percent: int


def parse_progress(line: str) -> Progress | None:
    """Return the progress that a log line tells, None if it tells none."""
    match = _LINE.search(line)
    return Progress(match[1], min(100, int(match[2]))) if match else None


def is_worth_a_line(last: Progress | None, new: Progress) -> bool:
    """Tell whether `new` is far enough from the `last` that was shown to get a line of its own."""
    if last is None or last.stage != new.stage:
        return True
    return new.percent >= last.percent + _STEP_PERCENT or (new.percent == 100 and last.percent < 100)
