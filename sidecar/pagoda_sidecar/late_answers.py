"""Answers that came too late for their caller: counted, where grpc logs an error with a traceback for each.

A deadline that passes while its answer is on the way is the caller's affair and happens all the time on a busy machine.
"""

import contextlib
import logging
import re
from collections.abc import Iterator

from pagoda_sidecar.intake import CALLS, Count

_LOGGER = "grpc._cython.cygrpc"
_ERROR = "ExecuteBatchError"
_MESSAGE = re.compile(_ERROR + r" raised in core by servicer method \[(.+)\]")


class _LateAnswers(logging.Filter):
    """Takes this one message out of grpc's log; everything else passes."""

    def __init__(self, count: Count) -> None:
        super().__init__()
        self._count = count

    def filter(self, record: logging.LogRecord) -> bool:
        said = _MESSAGE.fullmatch(record.getMessage())
        error = record.exc_info[0] if record.exc_info else None
        if said is None or error is None or error.__name__ != _ERROR:
            return True
        self._count(CALLS.get(said[1], "unknown"), "late")
        return False


@contextlib.contextmanager
def late_answers_counted(count: Count) -> Iterator[None]:
    """Tell `count` of (call, "late") instead of the log while the context is open."""
    late_answers = _LateAnswers(count)
    logger = logging.getLogger(_LOGGER)
    logger.addFilter(late_answers)
    try:
        yield
    finally:
        logger.removeFilter(late_answers)
