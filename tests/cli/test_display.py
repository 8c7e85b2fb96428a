"""What the user sees: lines with their part in front, progress that does not flood, nothing that stops the pool."""

import io

import pytest

from pagoda_cli.display import PlainDisplay, open_display
from pagoda_cli.process import LineSplitter
from pagoda_cli.progress import Progress, is_worth_a_line, parse_progress
from pagoda_cli.terminal import TerminalDisplay


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_line_of_a_part_has_the_part_in_front() -> None:
    output = io.StringIO()
    with open_display(output) as display:
        display.log("engine chat-0", "loaded")
        display.say("up")
    assert output.getvalue() == "engine chat-0 │ loaded\npagoda │ up\n"


def test_progress_is_shown_every_25_percent_on_plain_output() -> None:
    output = io.StringIO()
    display = PlainDisplay(output)
    for percent in range(101):
        display.progress("engine chat-0", Progress("weights", percent))
    display.progress("engine chat-0", Progress("warmup", 0))
    assert output.getvalue().splitlines() == [
        *(f"engine chat-0 │ weights {percent}%" for percent in (0, 25, 50, 75, 100)),
        "engine chat-0 │ warmup 0%",
    ]


def test_a_terminal_gets_bars_that_go_away_and_markup_stays_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    output = Terminal()
    with open_display(output) as display:
        assert isinstance(display, TerminalDisplay)
        display.progress("engine chat-0", Progress("weights", 40))
        display.log("engine chat-0", "[bold]not markup[/bold] :smile:")
        display.settle("engine chat-0")
        display.settle("engine chat-0")
    assert "[bold]not markup[/bold] :smile:" in output.getvalue()
    assert "weights" in output.getvalue()


@pytest.mark.parametrize("display", [PlainDisplay(Closed()), TerminalDisplay(Closed())])
def test_output_that_nobody_reads_any_more_is_no_error(display: PlainDisplay | TerminalDisplay) -> None:
    display.say("hello")
    display.log("engine chat-0", "hello")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("2026-11-29T16:00:00Z INFO pagoda_engine[chat-0] progress weights 40%", Progress("weights", 40)),
        ("progress packages 100%", Progress("packages", 100)),
        ("progress weights 140%", Progress("weights", 100)),
        ("no progress here", None),
        ("inprogress weights 40%", None),
    ],
)
def test_progress_is_told_by_one_form_of_line(line: str, expected: Progress | None) -> None:
    assert parse_progress(line) == expected


def test_a_hundred_percent_gets_its_line() -> None:
    assert is_worth_a_line(Progress("weights", 90), Progress("weights", 100))
    assert not is_worth_a_line(Progress("weights", 100), Progress("weights", 100))


def test_output_is_cut_into_lines_wherever_the_reads_fall() -> None:
    lines: list[str] = []
    splitter = LineSplitter(lines.append)
    for byte in "eins\r\nzwei ⛩\n\ndrei".encode():
        splitter.feed(bytes([byte]))
    splitter.end()
    assert lines == ["eins", "zwei ⛩", "", "drei"]


def test_a_line_without_end_is_cut_and_bytes_that_are_no_text_are_shown() -> None:
    lines: list[str] = []
    splitter = LineSplitter(lines.append)
    splitter.feed(b"x" * 150_000)
    splitter.feed(b"\xff\n")
    assert [len(line) for line in lines] == [65536, 65536, 150_000 - 2 * 65536 + 1]
    assert lines[-1].endswith("\ufffd")
