"""The book of outstanding work: what this router has sent to each pod and not seen the end of.

Work is written down at the moment of the decision, before any byte is sent, so that the next decision, a microsecond
later, already sees it: pods' own reports come seconds too late for a burst. Kept in whole microseconds, so that sums
return to exactly zero.
"""

import contextlib
from collections.abc import Iterator

from pagoda_router.pods import Pod


class Book:
    """Outstanding predicted work per pod."""

    def __init__(self) -> None:
        self._entries: dict[Pod, dict[int, int]] = {}  # pod → reservation → microseconds
        self._totals: dict[Pod, int] = {}
        self._next = 0

    def outstanding_seconds(self, pod: Pod) -> float:
        """Return the predicted work that is out at `pod`."""
        return self._totals.get(pod, 0) / 1e6

    def num_outstanding(self, pod: Pod) -> int:
        """Return how many requests are out at `pod`."""
        return len(self._entries.get(pod, ()))

    @contextlib.contextmanager
    def reserved(self, pod: Pod, seconds: float) -> Iterator[None]:
        """Hold `seconds` of work at `pod` while the context is open, however it ends."""
        number = self._add(pod, seconds)
        try:
            yield
        finally:
            self._remove(pod, number)

    def check_integrity(self) -> None:
        """Assert that totals are the sums of their entries and that no empty pod is kept."""
        assert self._entries.keys() == self._totals.keys()
        for pod, entries in self._entries.items():
            assert entries, f"{pod.name} is kept without a reservation"
            assert self._totals[pod] == sum(entries.values()), f"the total of {pod.name} is wrong"

    def _add(self, pod: Pod, seconds: float) -> int:
        assert 0 <= seconds < float("inf")
        number, self._next = self._next, self._next + 1
        microseconds = round(seconds * 1e6)
        self._entries.setdefault(pod, {})[number] = microseconds
        self._totals[pod] = self._totals.get(pod, 0) + microseconds
        return number

    def _remove(self, pod: Pod, number: int) -> None:
        entries = self._entries[pod]
        self._totals[pod] -= entries.pop(number)
        if not entries:
            del self._entries[pod], self._totals[pod]
