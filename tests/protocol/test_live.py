import json

import pytest

from pagoda_protocol.live import LiveSettings, LiveSettingsError, parse_live


def test_the_settings_are_read() -> None:
    text = json.dumps({"idleSeconds": 0.5, "sharedPrefixes": ["a", "b"]})
    assert parse_live(text) == LiveSettings(idle_seconds=0.5, shared_prefixes=("a", "b"))


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ([], "exactly the fields"),
        ({"idleSeconds": 1}, "exactly the fields"),
        ({"idleSeconds": 1, "sharedPrefixes": [], "other": 1}, "exactly the fields"),
        ({"idleSeconds": True, "sharedPrefixes": []}, "idleSeconds"),
        ({"idleSeconds": 0, "sharedPrefixes": []}, "idleSeconds"),
        ({"idleSeconds": float("nan"), "sharedPrefixes": []}, "idleSeconds"),
        ({"idleSeconds": "1", "sharedPrefixes": []}, "idleSeconds"),
        ({"idleSeconds": 1, "sharedPrefixes": "a"}, "sharedPrefixes"),
        ({"idleSeconds": 1, "sharedPrefixes": ["a"] * 257}, "sharedPrefixes"),
        ({"idleSeconds": 1, "sharedPrefixes": ["a", ""]}, r"sharedPrefixes\[1\]"),
        ({"idleSeconds": 1, "sharedPrefixes": [1]}, r"sharedPrefixes\[0\]"),
    ],
)
def test_what_cannot_be_right_is_refused_by_field(document: object, named: str) -> None:
    with pytest.raises(LiveSettingsError, match=named):
        parse_live(document if isinstance(document, str) else json.dumps(document))
