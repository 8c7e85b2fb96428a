"""The display of a person at a terminal: coloured lines above one bar per starting part.

A module of its own because importing `rich` takes longer than refusing a manifest may.
"""

import contextlib
import zlib
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.text import Text

from pagoda_cli.display import Display
from pagoda_cli.progress import Progress

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_green")


class TerminalDisplay(Display):
    """Lines in the part's colour; bars only while something starts."""

    def __init__(self, output: TextIO) -> None:
        console = _LastingConsole(file=output, soft_wrap=True)
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
        self._bars.update(self._tasks[title], description=progress.stage, completed=progress.percent)
        self._bars.start()

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
        text = Text.assemble((f"{title} │ ", title_style), (line, style))
        with contextlib.suppress(OSError):
            self._bars.console.print(text)


class _LastingConsole(Console):
    """Falls silent when its output is gone, where the base class would end the process."""

    def on_broken_pipe(self) -> None:
        """Write nothing more."""
        self.quiet = True
