"""Whether the disk can be used, and why not. Pure."""

import errno

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class LateError(OSError):
    """The disk did not answer in time; what was asked of it may still happen."""

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(errno.ETIMEDOUT, f"{what} took longer than {seconds:g} s")


class Health:
    """One failed write switches the tier off, reads only when several fail in a row: a bad sector is no bad disk."""

    def __init__(self, max_late_reads: int) -> None:
        self.off_reason = ""
        self.is_full = False
        self._max_late_reads = max_late_reads
        self._num_late = 0

    def write_failed(self, error: OSError) -> None:
        """Switch off."""
        self.is_full = error.errno in _FULL
        self.off_reason = reason_of(error)

    def read_failed(self, error: OSError) -> None:
        """Count; the last straw switches off."""
        self._num_late += 1
        if self._num_late >= self._max_late_reads and not self.off_reason:
            self.off_reason = reason_of(error)

    def read_came(self) -> None:
        """Forget earlier trouble with reads."""
        self._num_late = 0

    def recovered(self) -> None:
        """Switch on again."""
        self.off_reason, self.is_full, self._num_late = "", False, 0


class BackOff:
    """How long to wait before each new try: doubling, from the start again after one that held for long."""

    def __init__(self, first_seconds: float, max_seconds: float) -> None:
        self._first_seconds = first_seconds
        self._max_seconds = max_seconds
        self._next_seconds = first_seconds
        self._tried_at = 0.0

    def next_seconds(self, now: float) -> float:
        """Return how long to wait from `now` on; tries that fail come without a pause between."""
        if now - self._tried_at > self._max_seconds:
            self._next_seconds = self._first_seconds
        wait, self._next_seconds = self._next_seconds, min(2 * self._next_seconds, self._max_seconds)
        self._tried_at = now + wait
        return wait


def reason_of(error: OSError) -> str:
    """Return what to tell a person of `error`."""
    if error.errno in _FULL:
        return "the disk is full"
    if error.errno == errno.EROFS:
        return "the disk is read-only"
    if isinstance(error, LateError):
        return f"the disk is slow: {error.strerror}"
    if error.filename is not None:
        return f"the disk fails: {error.strerror or error}: {error.filename}"
    return f"the disk fails: {error.strerror or error}"
