"""What a log says of the end of its program, in words that do not differ from one end to the next."""

import logging
from collections.abc import Iterator

import pytest

from pagoda_protocol.log_lines import last_words
from pagoda_runtime import logs


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def test_the_last_words_of_a_log_are_its_error_without_time_and_name(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("engine", "demo-0")
    log = root.getChild("test")
    log.info("listening %s", logs.fields(port=80))
    log.error("cannot start: %s", "[a] has no weights")
    said = capsys.readouterr().err
    assert last_words(said) == "cannot start: [a] has no weights"
    assert last_words(said.splitlines()[0]) == "", "what is no error explains no end"


HEAD = "2026-11-30T17:00:00.000Z {} sidecar-supervisor[demo-0] "
ERROR, INFO = HEAD.format("ERROR"), HEAD.format("INFO")
TRACE = 'Traceback (most recent call last):\n  File "x.py", line 1\n    f()\n'


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("", ""),
        ("\n \n", ""),
        (f"{INFO}listening\n", ""),
        (f"{ERROR}once\n{INFO}mended\n", ""),
        (f"{ERROR}cannot start: line one\nline two\n", "cannot start: line one"),
        (f"{ERROR}the loop broke\n{TRACE}ValueError: bad\n", "the loop broke"),
        (f"{INFO}listening\n{TRACE}ValueError: bad\n\n", "ValueError: bad"),
        (f"{TRACE}torch.AcceleratorError: CUDA error\nFor debugging\n", "torch.AcceleratorError: CUDA error"),
        (f"{INFO}a\u2028b\x85c\n", ""),
        ("one\nfailed to listen on TCP port 11211: Address already in use\n", "failed to listen on TCP port 11211: "
         "Address already in use"),
        (f"{INFO}{'x' * 2048}"[20:], ""),
        (f"{'x' * 2048}\n{ERROR}cannot start", "cannot start"),
    ],
)  # fmt: skip
def test_the_last_words_are_the_error_that_ended_the_program(said: str, words: str) -> None:
    assert last_words(said) == words
