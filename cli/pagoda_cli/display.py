"""What `pagoda up` shows: its own sentences, the parts' log lines with the part in front, how far starts have come.

On a terminal with colours and a bar per starting part, else in plain lines. Somebody who stops reading must not stop
the pool, so nothing here raises when the output is gone.
"""

import contextlib
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from pagoda_cli.progress import Progress, is_worth_a_line

if TYPE_CHECKING:
    from rich.progress import TaskID

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_green")


class Display(ABC):
    """Where everything that is said goes."""

    @abstractmethod
    def say(self, sentence: str) -> None:
        """Show a sentence of `pagoda up` itself."""

    @abstractmethod
    def log(self, title: str, line: str) -> None:
        """Show a line of the part `title`."""

    @abstractmethod
    def progress(self, title: str, progress: Progress) -> None:
        """Show how far the start of the part `title` has come."""

    @abstractmethod
    def settle(self, title: str) -> None:
        """Forget the progress of a part that is ready or has ended."""


class PlainDisplay(Display):
    """One line per event."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._shown: dict[str, Progress] = {}

    def say(self, sentence: str) -> None:
        """Show a sentence of `pagoda up` itself."""
        self._write(f"pagoda │ {sentence}")

    def log(self, title: str, line: str) -> None:
        """Show a line of the part `title`."""
        self._write(f"{title} │ {line}")

    def progress(self, title: str, progress: Progress) -> None:
        """Show every so many percent."""
        if is_worth_a_line(self._shown.get(title), progress):
            self._shown[title] = progress
            self._write(f"{title} │ {progress.stage} {progress.percent}%")

    def settle(self, title: str) -> None:
        """Forget the progress of a part that is ready or has ended."""
        self._shown.pop(title, None)

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            print(line, file=self._output, flush=True)


class TerminalDisplay(Display):
    """Coloured lines above one bar per starting part."""

    def __init__(self, output: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        console = Console(file=output, soft_wrap=True)
        columns = (TextColumn("{task.fields[title]}"), TextColumn("{task.description}"), BarColumn())
        self._bars = Bars(*columns, TimeElapsedColumn(), console=console, transient=True, redirect_stdout=False)
        self._tasks: dict[str, TaskID] = {}

    def say(self, sentence: str) -> None:
        """Show a sentence of `pagoda up` itself."""
        self._print("pagoda", "bold", sentence, "bold")

    def log(self, title: str, line: str) -> None:
        """Show a line of the part `title`."""
        self._print(title, _COLOURS[zlib.crc32(title.encode()) % len(_COLOURS)], line, "")

    def progress(self, title: str, progress: Progress) -> None:
        """Move the part's bar."""
        if title not in self._tasks:
            self._tasks[title] = self._bars.add_task("", title=title, total=100)
            self._bars.start()
        self._bars.update(self._tasks[title], description=progress.stage, completed=progress.percent)

    def settle(self, title: str) -> None:
        """Remove the part's bar; without bars nothing is redrawn any more."""
        task = self._tasks.pop(title, None)
        if task is not None:
            self._bars.remove_task(task)
            if not self._tasks:
                self.close()

    def close(self) -> None:
        """Give the terminal back."""
        with contextlib.suppress(OSError):
            self._bars.stop()

    def _print(self, title: str, title_style: str, line: str, style: str) -> None:
        from rich.text import Text

        text = Text.assemble((f"{title} │ ", title_style), (line, style))
        with contextlib.suppress(OSError):
            self._bars.console.print(text)


@contextlib.contextmanager
def open_display(output: TextIO = sys.stdout) -> Iterator[Display]:
    """Yield the display that suits `output`."""
    if not output.isatty():
        yield PlainDisplay(output)
        return
    display = TerminalDisplay(output)
    try:
        yield display
    finally:
        display.close()
