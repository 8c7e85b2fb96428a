"""What keeps `pagoda up` from starting, as lines that a person can act on.

UpError                 nothing is running (any more); `lines` say why
 ├─ RefusedError        the manifest or this machine does not allow it, exit status 2
 └─ StartupFailedError  a part does not start, exit status 1
"""

from collections.abc import Sequence


class UpError(Exception):
    """The pool cannot be run; `lines` are for the person who asked."""

    exit_status = 1

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


class RefusedError(UpError):
    """The manifest or this machine does not allow it; each line is `path: what is wrong; what would be right`."""

    exit_status = 2


class StartupFailedError(UpError):
    """A part has ended too often before it was ever ready."""
