"""An event loop whose clock jumps to the next timer as soon as nothing else is left to do: hours pass in no time."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Never waits; what the loop would have waited is added to its time."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing will ever happen: everybody waits for nobody"
            self.passed += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop in virtual time, which starts at 1000 s."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return 1000.0 + self._clock.passed


def run_virtually(story: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time; `asyncio.get_running_loop().time` is its clock."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(story)
