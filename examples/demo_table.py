"""One row per request: growing under the reader's eyes on a terminal, plain lines elsewhere."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.table import Table

SOURCES = ("compute", "device", "ram", "disk", "pool")
_COLUMNS = ("talk", "turn", "pod", "route", *SOURCES, "TTFT s", "tok/s")
_WIDTHS = (9, 4, 7, 13, 7, 6, 4, 4, 5, 6, 5)  # 80 columns hold them all


@dataclass(frozen=True)
class Row:
    """What is known of one answered request."""

    conversation: str
    turn: int
    pod: str
    reason: str
    prompt_tokens: int
    sources: dict[str, int]
    """Prompt tokens by where their keys and values came from."""
    ttft_seconds: float
    tokens_per_second: float

    @property
    def reused_tokens(self) -> int:
        """Prompt tokens that were not computed."""
        return self.prompt_tokens - self.sources["compute"]

    def cells(self) -> list[str]:
        """Return the row's cells, in the order of the columns."""
        numbers = [str(self.sources[source] or "·") for source in SOURCES]
        speed = f"{self.tokens_per_second:.1f}" if self.tokens_per_second else "·"
        return [self.conversation, str(self.turn), self.pod, self.reason, *numbers, f"{self.ttft_seconds:.2f}", speed]


@dataclass
class Rows:
    """All rows so far, and the table that shows them."""

    console: Console
    all: list[Row] = field(default_factory=list)
    live: Live | None = None

    def add(self, row: Row) -> None:
        """Show one more row."""
        self.all.append(row)
        if self.live is not None:
            self.live.update(_table(self.all), refresh=True)
        else:
            print(_line(row.cells()), flush=True)

    def say(self, text: str) -> None:
        """Say something between rows."""
        if self.live is not None:
            self.live.console.print(text, highlight=False)
        else:
            print(text, flush=True)


@contextlib.contextmanager
def showing_rows() -> Iterator[Rows]:
    """Yield the rows to add to."""
    console = Console()
    if not sys.stdout.isatty():
        print(_line(list(_COLUMNS)), flush=True)
        yield Rows(console)
        return
    with Live(_table([]), console=console, auto_refresh=False, vertical_overflow="visible") as live:
        yield Rows(console, live=live)


def _table(rows: list[Row]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in _COLUMNS[:4] else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row.cells())
    return table


def _line(cells: list[str]) -> str:
    widths = enumerate(zip(cells, _WIDTHS, strict=True))
    return " ".join(cell.ljust(width) if index < 4 else cell.rjust(width) for index, (cell, width) in widths).rstrip()
