"""What `pagoda up` shows: its own sentences, the parts' log lines with the part in front, how far starts have come.

On a terminal with colours and a bar per starting part, else in plain lines. Somebody who stops reading must not stop
the pool, so nothing here raises when the output is gone.
"""

import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TextIO

from pagoda_cli.progress import Progress, is_worth_a_line


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


@contextlib.contextmanager
def open_display(output: TextIO = sys.stdout) -> Iterator[Display]:
    """Yield the display that suits `output`."""
    if not output.isatty():
        yield PlainDisplay(output)
        return
    from pagoda_cli.terminal import TerminalDisplay

    display = TerminalDisplay(output)
    try:
        yield display
    finally:
        display.close()
