"""The requests that live: waiting and running, each list in order of arrival.

A preempted request waits again at its old place, in front of all that arrived after it.
"""

from bisect import insort
from collections.abc import Iterator

from pagoda_engine.core.request import Request


def _order(request: Request) -> int:
    return request.order


class Roster:
    """Which request is where."""

    def __init__(self) -> None:
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.num_preemptions = 0  # since the start
        self._by_id: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Request]:
        return iter([*self.running, *self.waiting])

    def get(self, request_id: str) -> Request | None:
        """The living request of this name."""
        return self._by_id.get(request_id)

    def add(self, request: Request) -> None:
        """A new request waits."""
        self._by_id[request.request_id] = request
        insort(self.waiting, request, key=_order)

    def admit(self, request: Request) -> None:
        """It runs."""
        self.waiting.remove(request)
        insort(self.running, request, key=_order)

    def put_back(self, request: Request) -> None:
        """It was preempted and waits again."""
        self.num_preemptions += 1
        self.running.remove(request)
        insort(self.waiting, request, key=_order)

    def remove(self, request: Request) -> None:
        """It lives no more."""
        del self._by_id[request.request_id]
        (self.running if request in self.running else self.waiting).remove(request)
