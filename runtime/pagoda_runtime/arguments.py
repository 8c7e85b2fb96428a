"""Types of command-line values that all programs share: argparse calls them, and prints what they say when wrong."""

import argparse
from collections.abc import Callable
from pathlib import Path


def text(value: str) -> str:
    """Take a text that is not blank."""
    if not value.strip():
        raise argparse.ArgumentTypeError("expected a text that is not empty")
    return value


def folder(value: str) -> Path:
    """Take a path; whether something is there is for its reader to say."""
    return Path(text(value))


def whole_number(at_least: int, at_most: int | None = None) -> Callable[[str], int]:
    """Return a type that takes whole numbers in a range."""
    wanted = f"of at least {at_least}" if at_most is None else f"from {at_least} to {at_most}"

    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = at_least - 1
        if number < at_least or (at_most is not None and number > at_most):
            raise argparse.ArgumentTypeError(f"expected a whole number {wanted}, got {value!r}")
        return number

    return parse


port = whole_number(0, 65535)


def seconds(value: str) -> float:
    """Take a duration; neither negative nor without end."""
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds of at least 0, got {value!r}")
    return number
