"""Which block of a run is whose, while one thread computes from its front and another one loads into its pages.

    first ……… floor ………………………… landed ………… stop
    │ computed │ to come: the tier thread's │ verified │

Rules: the tier thread writes a block's page only between `claim` and `arrived`, and never below the floor; the engine
computes only below the floor. So no page has two writers, whatever the order of things.
"""

import threading


class Landing:
    """Shared by two threads, each with methods of its own."""

    def __init__(self, first: int) -> None:
        self._lock = threading.Lock()
        self._floor = first
        self._claimed: int | None = None
        self._landed: dict[int, str] = {}

    # -- the tier thread ------------------------------------------------------------------------------------------

    @property
    def floor(self) -> int:
        """The lowest block that is wanted still."""
        return self._floor

    def claim(self, position: int) -> bool:
        """Begin to write a block's page; False if it is not wanted any more."""
        with self._lock:
            if position < self._floor:
                return False
            self._claimed = position
            return True

    def arrived(self, position: int, source: str) -> bool:
        """The claimed block is written and verified; return whether it counts."""
        with self._lock:
            if self._claimed != position:
                return False
            self._claimed = None
            if position < self._floor:
                return False
            self._landed[position] = source
            return True

    def let_go(self) -> None:
        """Nothing is written any more: the call has ended."""
        with self._lock:
            self._claimed = None

    # -- the engine's thread --------------------------------------------------------------------------------------

    def source_of(self, position: int) -> str | None:
        """Where a landed block came from; None if it has not landed."""
        return self._landed.get(position)

    def take(self, position: int) -> None:
        """A landed block was taken over: everything up to it is the engine's."""
        with self._lock:
            del self._landed[position]
            self._floor = max(self._floor, position + 1)

    def lowest(self, position: int) -> int | None:
        """The first landed block from `position` on."""
        with self._lock:
            return min((landed for landed in self._landed if landed >= position), default=None)

    @property
    def claimed(self) -> int | None:
        """The block whose page the tier thread is writing."""
        return self._claimed

    def reserve(self, first: int, stop: int) -> int:
        """Take [first, stop) away from the tier thread, as far as it has nothing there; return how far that is."""
        with self._lock:
            theirs = [position for position in self._landed if position >= first]
            if self._claimed is not None and self._claimed >= first:
                theirs.append(self._claimed)
            stop = min([stop, *theirs])
            self._floor = max(self._floor, stop)
            return stop

    def seize(self, position: int) -> None:
        """Take a block whatever the tier thread does there: what it has written or is just writing does not count."""
        with self._lock:
            self._landed.pop(position, None)
            self._floor = max(self._floor, position + 1)
