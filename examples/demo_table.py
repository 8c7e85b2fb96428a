"""One row per request, in the order of the answers; what happened between two of them stands between their rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console

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
    """All rows so far, each shown when it is added."""

    console: Console = field(default_factory=Console)
    all: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.say(_line(_COLUMNS), style="bold")

    def add(self, row: Row) -> None:
        """Show one more row."""
        self.all.append(row)
        self.say(_line(row.cells()))

    def say(self, text: str, style: str | None = None) -> None:
        """Show a line of text, between rows."""
        self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def _line(cells: Sequence[str]) -> str:
    widths = enumerate(zip(cells, _WIDTHS, strict=True))
    return " ".join(cell.ljust(width) if index < 4 else cell.rjust(width) for index, (cell, width) in widths).rstrip()
