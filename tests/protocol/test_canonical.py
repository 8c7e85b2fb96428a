import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_protocol.canonical import canonical_json

# Every string that a JSON document can hold: lone surrogates too, but no pair of them that is one character.
text = st.text(st.characters(codec=None, categories=("L", "N", "P", "S", "Z", "C"))).map(
    lambda string: json.loads(json.dumps(string))
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)


def by_hand(value):
    """Only what the golden values need: no escapes beside quote and backslash."""
    if isinstance(value, dict):
        return b"{" + b",".join(by_hand(key) + b":" + by_hand(value[key]) for key in sorted(value)) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(by_hand(item) for item in value) + b"]"
    if isinstance(value, str):
        return b'"' + value.replace("\\", "\\\\").replace('"', '\\"').encode() + b'"'
    return {None: b"null", True: b"true", False: b"false"}[value] if value in (None, True, False) else b"%d" % value


def test_canonical_json_equals_the_form_made_by_hand_and_its_frozen_bytes():
    value = {"z": [7, None, True], "ä": 'a "b" \\', "a": {"y": False, "x": "塔"}}
    assert canonical_json(value) == by_hand(value)
    assert (
        canonical_json(value).hex() == "7b2261223a7b2278223a22e5a194222c2279223a66616c73657d2c227a223a5b"
        "372c6e756c6c2c747275655d2c22c3a4223a2261205c22625c22205c5c227d"
    )


@given(values)
def test_canonical_json_reads_back_as_the_same_value_and_is_utf8(value):
    assert json.loads(canonical_json(value).decode("utf-8")) == value


@given(values, values)
def test_values_that_are_written_alike_are_equal(one, other):
    if canonical_json(one) == canonical_json(other):
        assert one == other


def test_a_lone_surrogate_differs_from_its_escape_written_out():
    assert canonical_json("\ud800") == b'"\\ud800"'
    assert canonical_json("\\ud800") == b'"\\\\ud800"'


def test_the_order_of_insertion_does_not_show():
    assert canonical_json({"a": 1, "b": 2}) == canonical_json({"b": 2, "a": 1})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_json_cannot_carry_are_refused(value):
    with pytest.raises(ValueError):
        canonical_json([value])
