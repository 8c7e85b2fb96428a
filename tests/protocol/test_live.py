import json

import pytest

from pagoda_protocol.live import LiveSettings, LiveSettingsError, parse_live


def test_the_settings_are_read() -> None:
    text = json.dumps({"generation": 7, "idleSeconds": 0.5, "sharedPrefixes": ["a", "b"]})
    assert parse_live(text) == LiveSettings(generation=7, idle_seconds=0.5, shared_prefixes=("a", "b"))


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ([], "exactly the fields"),
        ({"generation": 1, "idleSeconds": 1}, "exactly the fields"),
        ({"idleSeconds": 1, "sharedPrefixes": []}, "exactly the fields"),
        ({"generation": 1, "idleSeconds": 1, "sharedPrefixes": [], "other": 1}, "exactly the fields"),
        ({"generation": True, "idleSeconds": 1, "sharedPrefixes": []}, "generation"),
        ({"generation": 0, "idleSeconds": 1, "sharedPrefixes": []}, "generation"),
        ({"generation": 1.5, "idleSeconds": 1, "sharedPrefixes": []}, "generation"),
        ({"generation": 2**63, "idleSeconds": 1, "sharedPrefixes": []}, "generation"),
        ({"generation": 1, "idleSeconds": True, "sharedPrefixes": []}, "idleSeconds"),
        ({"generation": 1, "idleSeconds": 0, "sharedPrefixes": []}, "idleSeconds"),
        ({"generation": 1, "idleSeconds": float("nan"), "sharedPrefixes": []}, "idleSeconds"),
        ({"generation": 1, "idleSeconds": "1", "sharedPrefixes": []}, "idleSeconds"),
        ({"generation": 1, "idleSeconds": 1, "sharedPrefixes": "a"}, "sharedPrefixes"),
        ({"generation": 1, "idleSeconds": 1, "sharedPrefixes": ["a"] * 257}, "sharedPrefixes"),
        ({"generation": 1, "idleSeconds": 1, "sharedPrefixes": ["a", ""]}, r"sharedPrefixes\[1\]"),
        ({"generation": 1, "idleSeconds": 1, "sharedPrefixes": [1]}, r"sharedPrefixes\[0\]"),
    ],
)
def test_what_cannot_be_right_is_refused_by_field(document: object, named: str) -> None:
    with pytest.raises(LiveSettingsError, match=named):
        parse_live(document if isinstance(document, str) else json.dumps(document))
