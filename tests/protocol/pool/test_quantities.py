from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_protocol.pool.quantities import MAX_BYTES, QuantityError, format_bytes, parse_bytes, parse_millicores


@pytest.mark.parametrize(
    ("value", "num_bytes"),
    [(0, 0), (1024, 1024), ("0", 0), ("1", 1), ("1k", 1000), ("1Ki", 1024), ("5M", 5_000_000), ("512Mi", 536_870_912),
     ("1.5Gi", 1_610_612_736), ("2G", 2_000_000_000), ("1Ti", 2**40), ("1T", 10**12), ("1Pi", 2**50), ("1E", 10**18),
     ("7Ei", 7 * 2**60), ("1e3", 1000), ("12E2", 1200), (".5Ki", 512), ("1.0001k", 1001), ("0.1", 1), ("15e-1", 2)],
)  # fmt: skip
def test_a_memory_quantity_is_read_exactly_and_rounded_up(value, num_bytes):
    assert parse_bytes(value) == num_bytes


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("4GB", """unknown unit 'GB'; did you mean "4G" or "4Gi"?"""),
        ("400m", """unknown unit 'm'; did you mean "400M" or "400Mi"?"""),
        ("8gi", """unknown unit 'gi'; did you mean "8Gi"?"""),
        ("64K", """unknown unit 'K'; did you mean "64k" or "64Ki"?"""),
        (
            "3x",
            """unknown unit 'x'; give bytes as a whole number, or a string such as "512Mi" or "8Gi", with one of the """
            "units Ki, Mi, Gi, Ti, Pi, Ei, k, M, G, T, P, E",
        ),
        (
            "1e999",
            """'1e999' is not a quantity; give bytes as a whole number, or a string such as "512Mi" or "8Gi\"""",
        ),
        ("9Ei", "more than 9223372036854775807 bytes; give less"),
    ],
)
def test_a_wrong_unit_is_named_with_what_was_meant(value, message):
    with pytest.raises(QuantityError) as refused:
        parse_bytes(value)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    "value", ["", " 1", "1 Gi", "-1", "+1", -1, "1.", "1e999", "1e3Ki", "٣", "Gi", 1.5, True, None, [1], "9" * 99]
)
def test_what_is_no_quantity_is_refused(value):
    for parse in (parse_bytes, parse_millicores):
        with pytest.raises(QuantityError, match="; give "):
            parse(value)


@given(st.integers(0, MAX_BYTES))
def test_bytes_that_are_written_read_back_the_same(num_bytes):
    assert parse_bytes(format_bytes(num_bytes)) == num_bytes
    assert parse_bytes(num_bytes) == num_bytes


@given(st.decimals(0, 10**6, places=3), st.sampled_from(["Ki", "Mi", "Gi", "Ti"]))
def test_a_fraction_of_a_unit_is_what_decimal_arithmetic_says(number, unit):
    exact = number * Decimal(1024) ** (1 + ["Ki", "Mi", "Gi", "Ti"].index(unit))
    assert parse_bytes(f"{number:f}{unit}") == int(exact.to_integral_value("ROUND_CEILING"))


@pytest.mark.parametrize(("value", "expected"), [(2, 2000), ("2", 2000), ("500m", 500), ("1.5", 1500), ("0.1m", 1)])
def test_a_cpu_quantity_is_thousandths_of_a_core(value, expected):
    assert parse_millicores(value) == expected


@pytest.mark.parametrize("value", ["2k", "2Gi", "2 cores"])
def test_another_unit_of_cpu_is_refused(value):
    with pytest.raises(QuantityError, match=r'such as "2" or "500m"$'):
        parse_millicores(value)


@given(st.text(max_size=30) | st.floats() | st.integers() | st.none())
def test_nothing_but_a_number_or_quantity_error_comes_out_of_any_value(value):
    for parse in (parse_bytes, parse_millicores):
        try:
            assert parse(value) >= 0
        except QuantityError:
            pass
