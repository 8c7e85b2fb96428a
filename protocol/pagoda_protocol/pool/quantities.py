"""Kubernetes quantities: an integer or a string with a unit, read exactly.

Memory becomes bytes and cpu becomes thousandths of a core; what is not whole is rounded up, as Kubernetes does. Where
Kubernetes would take a value that nobody can mean (memory "400m" is four tenths of a byte), this says so instead.
"""

import re
from fractions import Fraction

MEBI = 1024**2
GIBI = 1024**3
MAX_BYTES = 2**63 - 1
MAX_MILLICORES = 10**9

_BINARY = {unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)}
_DECIMAL = {unit: 1000**power for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), start=1)}
_MULTIPLIERS = {"": 1} | _BINARY | _DECIMAL

# The number, an exponent of at most two digits (so that no string can ask for a number that fills memory), the unit.
_QUANTITY = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,18})?|\.[0-9]{1,18})(?:[eE]([+-]?[0-9]{1,2}))?([A-Za-z]*)", re.ASCII)
_MISTAKEN = {
    "kb": ("k", "Ki"), "kib": ("Ki",), "ki": ("Ki",), "k": ("k", "Ki"), "b": ("",),
    "mb": ("M", "Mi"), "mib": ("Mi",), "mi": ("Mi",), "m": ("M", "Mi"),
    "gb": ("G", "Gi"), "gib": ("Gi",), "gi": ("Gi",), "g": ("G", "Gi"),
    "tb": ("T", "Ti"), "tib": ("Ti",), "ti": ("Ti",), "t": ("T", "Ti"),
}  # fmt: skip
_MEMORY_FORM = 'give bytes as a whole number, or a string such as "512Mi" or "8Gi"'
_CPU_FORM = 'give cores as a whole number, or a string such as "2" or "500m"'


class QuantityError(ValueError):
    """Not a quantity of the kind asked for; the message says what is wrong; what would be right."""


def parse_bytes(value: object) -> int:
    """Return the bytes of a memory quantity, 0 or more.

    Raises:
        QuantityError: another type, an unknown unit, or more than 2^63 - 1 bytes.
    """
    number, unit = _split(value, _MEMORY_FORM)
    if unit not in _MULTIPLIERS:
        raise QuantityError(f"unknown unit {unit!r}; {_right_unit(str(value), unit)}")
    return _bounded(_ceil(number * _MULTIPLIERS[unit]), MAX_BYTES, "bytes")


def parse_millicores(value: object) -> int:
    """Return the thousandths of a core of a cpu quantity, 0 or more.

    Raises:
        QuantityError: another type, an unknown unit, or more than a million cores.
    """
    number, unit = _split(value, _CPU_FORM)
    if unit not in ("", "m"):
        raise QuantityError(f"unknown unit {unit!r}; {_CPU_FORM}")
    return _bounded(_ceil(number if unit else number * 1000), MAX_MILLICORES, "millicores")


def format_bytes(num_bytes: int) -> str:
    """Write bytes as a quantity that reads back as the same number, in the largest binary unit that is whole."""
    for unit, multiplier in reversed(_BINARY.items()):
        if num_bytes and num_bytes % multiplier == 0:
            return f"{num_bytes // multiplier}{unit}"
    return str(num_bytes)


def short_bytes(num_bytes: int) -> str:
    """Write a size for people, with one digit after the point: `3.5Gi`."""
    for unit, power in (("Gi", 3), ("Mi", 2)):
        if num_bytes >= 1024**power:
            return f"{num_bytes / 1024**power:.1f}{unit}"
    return str(num_bytes)


def _split(value: object, form: str) -> tuple[Fraction, str]:
    match = _QUANTITY.fullmatch(str(value)) if isinstance(value, (int, str)) else None
    if match is None:
        raise QuantityError(f"{value!r:.60} is not a quantity; {form}")
    number, exponent, unit = match.groups()
    if exponent and unit:
        raise QuantityError(f"{value!r:.60} has an exponent and a unit; {form}")
    return Fraction(number) * Fraction(10) ** int(exponent or 0), unit


def _right_unit(text: str, unit: str) -> str:
    candidates = _MISTAKEN.get(unit.lower(), ())
    if not candidates:
        return f"{_MEMORY_FORM}, with one of the units {', '.join([*_BINARY, *_DECIMAL])}"
    number = text.removesuffix(unit)
    return "did you mean " + " or ".join(f'"{number}{candidate}"' for candidate in candidates) + "?"


def _bounded(value: int, maximum: int, noun: str) -> int:
    if value > maximum:
        raise QuantityError(f"more than {maximum} {noun}; give less")
    return value


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)
