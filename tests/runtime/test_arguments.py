"""Values on the command line: what is right is taken, what is wrong is told with what would be right."""

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from pagoda_runtime.arguments import folder, port, seconds, text, whole_number


@pytest.mark.parametrize(
    ("kind", "value", "meaning"),
    [
        (text, "chat-0", "chat-0"),
        (folder, "/volume", Path("/volume")),
        (whole_number(1), "16", 16),
        (port, "0", 0),
        (port, "65535", 65535),
        (seconds, "0.5", 0.5),
    ],
)
def test_right_values_are_taken(kind: Callable[[str], object], value: str, meaning: object) -> None:
    assert kind(value) == meaning


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        (text, " ", "a text that is not empty"),
        (folder, "", "a text that is not empty"),
        (whole_number(1), "0", "a whole number of at least 1, got '0'"),
        (whole_number(1), "1.5", "a whole number of at least 1, got '1.5'"),
        (whole_number(0), "-1", "a whole number of at least 0, got '-1'"),
        (port, "65536", "a whole number from 0 to 65535, got '65536'"),
        (port, "http", "a whole number from 0 to 65535, got 'http'"),
        (seconds, "-1", "seconds of at least 0, got '-1'"),
        (seconds, "inf", "seconds of at least 0, got 'inf'"),
        (seconds, "nan", "seconds of at least 0, got 'nan'"),
        (seconds, "soon", "seconds of at least 0, got 'soon'"),
    ],
)
def test_wrong_values_are_told_with_what_would_be_right(kind: Callable[[str], object], value: str, wanted: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refusal:
        kind(value)
    assert str(refusal.value) == f"expected {wanted}"
