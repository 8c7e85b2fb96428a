"""Canonical JSON: one byte string per value, the same in every process."""

import json
from typing import Any


def canonical_json(value: Any) -> bytes:
    """Encode `value` with sorted keys, no spaces and non-ASCII kept as UTF-8.

    Raises:
        ValueError: for NaN and infinities, which JSON cannot carry.
        TypeError: for values JSON does not know.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # A lone surrogate is legal in a Python string and illegal in UTF-8; it is escaped so that it keeps an identity.
    return text.encode("utf-8", errors="backslashreplace")
