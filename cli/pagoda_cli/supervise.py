"""Runs all parts of a plan until asked to stop, then ends them in the order in which they need one another.

    start all ─► keep each ─► (stop asked for | a part will not start) ─► router, engines, sidecars, memcached end

Every wait on the way out has a deadline, and a second request to stop ends everything at once.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pagoda_cli.display import Display
from pagoda_cli.guarding import Guard
from pagoda_cli.keeper import Keeper, Pace, State
from pagoda_cli.plan import STOP_ORDER, Part, Plan
from pagoda_cli.progress import parse_progress

_MIN_STOP_SECONDS = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass
class Stop:
    """What the person asked for: to drain, then to end at once."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    at_once: asyncio.Event = field(default_factory=asyncio.Event)
    signal_number: int = 0

    def ask(self, number: int) -> None:
        """Note one more request to stop."""
        self.signal_number = number
        (self.at_once if self.asked.is_set() else self.asked).set()


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Yield what SIGTERM, SIGINT and SIGHUP (the terminal is gone) set. Enter it inside the running loop."""
    loop, stop = asyncio.get_running_loop(), Stop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop.ask, number)
    try:
        yield stop
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


class Supervisor:
    """The parts of one plan."""

    def __init__(
        self,
        plan: Plan,
        host: str,
        guard: Guard,
        display: Display,
        on_change: Callable[["Supervisor"], None],
        pace: Pace | None = None,
    ) -> None:
        """`on_change` is called after each change of any part."""
        self.plan = plan
        self.keepers = [
            Keeper(part, host, guard, pace or Pace(), self._on_line, self._on_part_change) for part in plan.parts
        ]
        self._display = display
        self._on_change = on_change
        self._all_ready = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        """Whether every part is ready now."""
        return all(keeper.state is State.READY for keeper in self.keepers)

    async def run(self, stop: Stop, on_ready: Callable[[], None]) -> None:
        """Run everything until `stop` asks for the end; call `on_ready` once, when all parts are ready.

        Raises:
            StartupFailedError: a part does not start; everything has ended by then.
        """
        tasks = [asyncio.create_task(keeper.keep(), name=keeper.part.title) for keeper in self.keepers]
        announcing = asyncio.create_task(self._announce(on_ready))
        asked = asyncio.create_task(stop.asked.wait())
        try:
            await asyncio.wait([*tasks, asked], return_when=asyncio.FIRST_COMPLETED)
            failure = next((task.exception() for task in tasks if task.done() and not task.cancelled()), None)
        finally:
            for task in (*tasks, announcing, asked):
                task.cancel()
            await asyncio.gather(*tasks, announcing, asked, return_exceptions=True)
            await self._end(stop)
        if failure is not None:
            raise failure

    async def _announce(self, on_ready: Callable[[], None]) -> None:
        await self._all_ready.wait()
        on_ready()

    async def _end(self, stop: Stop) -> None:
        why = "stopping" if stop.asked.is_set() else "stopping, because a part does not start"
        self._display.say(f"{why}; Ctrl-C once more ends everything at once")
        draining = asyncio.create_task(self._drain())
        at_once = asyncio.create_task(stop.at_once.wait())
        try:
            await asyncio.wait([draining, at_once], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for keeper in self.keepers:
                keeper.kill()
            at_once.cancel()
            await asyncio.gather(draining, at_once, return_exceptions=True)

    async def _drain(self) -> None:
        """End the parts kind by kind; what the routers' drain has used up is taken from the engines' time."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        for kind in STOP_ORDER:
            keepers = [keeper for keeper in self.keepers if keeper.part.kind is kind]
            used = loop.time() - start
            await asyncio.gather(*(keeper.stop(_seconds_left(keeper.part, used)) for keeper in keepers))

    def _on_line(self, part: Part, line: str) -> None:
        progress = parse_progress(line)
        if progress is None:
            self._display.log(part.title, line)
        else:
            self._display.progress(part.title, progress)

    def _on_part_change(self, keeper: Keeper, sentence: str) -> None:
        if keeper.state is not State.STARTING:
            self._display.settle(keeper.part.title)
        if sentence:
            self._display.say(f"{keeper.part.title}: {sentence}")
        if self.is_ready:
            self._all_ready.set()
        self._on_change(self)


def _seconds_left(part: Part, used_seconds: float) -> float:
    """Return how long `part` may take to end: its drain began with the router's, its grace has not."""
    return max(part.stop_seconds - used_seconds, min(part.stop_seconds, _MIN_STOP_SECONDS))
