"""What a log says of the end of its program, in words that do not differ from one end to the next."""

import logging
from collections.abc import Iterator

import pytest

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
    assert logs.last_words(said) == "cannot start: [a] has no weights"
    assert logs.last_words(said.splitlines()[0]) == "", "what is no error explains no end"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("", ""),
        ("\n \n", ""),
        ("Traceback (most recent call last):\n  …\nValueError: bad\n\n", "ValueError: bad"),
        ("failed to listen on TCP port 11211: Address already in use", "failed to listen on TCP port 11211: Address"),
    ],
)
def test_the_last_words_of_other_programs_are_their_last_line(said: str, words: str) -> None:
    assert logs.last_words(said)[: len(words) or None] == words
