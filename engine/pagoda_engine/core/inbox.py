"""What other threads want from the engine's thread: actions, run there in order."""

import threading
from collections import deque
from collections.abc import Callable

Action = Callable[[], None]


class Inbox:
    """A queue that wakes its reader."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._actions: deque[Action] = deque()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._actions)

    def put(self, action: Action) -> None:
        """Queue an action; also after `close`, for ends of jobs."""
        with self._changed:
            self._actions.append(action)
            self._changed.notify()

    def put_unless_closed(self, action: Action) -> bool:
        """Queue an action, or return False after `close`."""
        with self._changed:
            if self._is_closed:
                return False
            self._actions.append(action)
            self._changed.notify()
            return True

    def take(self) -> list[Action]:
        """Return and remove what is queued."""
        with self._changed:
            actions = list(self._actions)
            self._actions.clear()
            return actions

    def wait(self, timeout_seconds: float | None) -> None:
        """Wait until something is queued, somebody wakes the reader, or the time is over."""
        with self._changed:
            if not self._actions and not self._is_closed:
                self._changed.wait(timeout_seconds)

    def close(self) -> None:
        """Take no more requests, and wake the reader."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed
